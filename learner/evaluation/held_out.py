"""What is asked in an evaluation: which prompts, and the seed of each sample."""

import random
from typing import Final

import structlog

from learner.config import LearnerConfig
from learner.scoring.messages import MAX_TOLD, Prompt, told
from learner.scoring.ports import Scorer

log = structlog.get_logger()

MAX_EXCLUDED: Final = 200_000
"""Prompts looked at, at most, to leave out of an evaluation what a run trains on."""
_DRAWN_AT_ONCE: Final = 64
_NUM_SEEDS: Final = 2**63


def num_excluded(config: LearnerConfig) -> int:
    """Return how many of the run's prompts, from number 0, an evaluation leaves out."""
    return min(MAX_EXCLUDED, config.run.num_steps * config.rollouts.prompts_per_step)


async def draw_held_out(scorer: Scorer, count: int, *, num_known: int | None) -> list[Prompt]:
    """Return held-out prompts, each once: the same ones for the same run and ``count``.

    Those that can't be made are left out, and told.

    Args:
        scorer: opened for the held-out prompts.
        count: how many are wanted.
        num_known: how many there are; None where they are made without end.
    """
    count = count if num_known is None else min(count, num_known)
    prompts: list[Prompt] = []
    for start in range(0, count, _DRAWN_AT_ONCE):
        drawn = await scorer.draw(start, min(_DRAWN_AT_ONCE, count - start))
        prompts += drawn.prompts
        if drawn.skipped:
            log.warning(
                "evaluation.prompts_skipped",
                count=len(drawn.skipped),
                which=[told(each) for each in drawn.skipped[:MAX_TOLD]],
            )
    return prompts


def sample_seed(seed: int, prompt: int, sample: int) -> int:
    """Return the seed of a sample: the same for every model, so that they are compared alike."""
    return random.Random(f"evaluation {seed} {prompt} {sample}").randrange(_NUM_SEEDS)  # noqa: S311
