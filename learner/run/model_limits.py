"""Whether prompts and their completions fit into the model: said before the first lease."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from echo2swarm.models.architecture import num_positions
from echo2swarm.models.folder import read_config
from echo2swarm.system.errors import ConfigError
from learner.config import LearnerConfig
from learner.scoring.ports import Scorer
from protocols.leases import MAX_PROMPT_TOKENS

NUM_TRIED: Final = 16
"""Prompts that are looked at before the run begins."""

log = structlog.get_logger()


def longest_prompt(model_dir: Path, *, max_new_tokens: int, key: str) -> int:
    """Return how many tokens a prompt may have, so that its completion fits behind it.

    Args:
        model_dir: the model's folder.
        max_new_tokens: of a completion.
        key: what in the configuration says so.

    Raises:
        ConfigError: no prompt would fit.
    """
    positions = num_positions(read_config(model_dir))
    if positions is None:
        return MAX_PROMPT_TOKENS
    if max_new_tokens >= positions:
        raise ConfigError(
            f"{key}: {max_new_tokens} new tokens, but the model takes {positions} with the prompt "
            f"(max_position_embeddings in its config.json); expected at most {positions - 1}, less "
            "the longest prompt"
        )
    return min(MAX_PROMPT_TOKENS, positions - max_new_tokens)


def check_lengths(lengths: Sequence[int], *, most: int, max_new_tokens: int, key: str) -> None:
    """See that prompts fit.

    Args:
        lengths: of some prompts, in tokens.
        most: what :func:`longest_prompt` says.
        max_new_tokens: of a completion.
        key: what in the configuration says so.

    Raises:
        ConfigError: none of them does.
    """
    too_long = [length for length in lengths if length > most]
    if not too_long:
        return
    if len(too_long) == len(lengths) and most < MAX_PROMPT_TOKENS:
        positions = most + max_new_tokens
        better = positions - max(too_long)
        remedy = f"set it to at most {better}" if better > 0 else "choose shorter prompts"
        raise ConfigError(
            f"{key}: prompts of {min(too_long)} to {max(too_long)} tokens and {max_new_tokens} new "
            f"ones, but the model takes {positions} (max_position_embeddings in its config.json); "
            f"{remedy}"
        )
    log.warning(
        "prompts.too_long",
        count=len(too_long),
        of=len(lengths),
        longest=max(too_long),
        limit=most,
        next="such prompts are skipped",
    )


async def check_prompts_fit(config: LearnerConfig, model_dir: Path, scorer: Scorer) -> int:
    """Return how many tokens a prompt may have, after looking at the first prompts of the run.

    Raises:
        ConfigError: none fits.
        ChildError: the task can't make them.
    """
    if config.trainer.kind == "sleep":  # it has no model, and neither have its nodes
        return MAX_PROMPT_TOKENS
    key, max_new_tokens = "rollouts.max_new_tokens", config.rollouts.max_new_tokens
    most = longest_prompt(model_dir, max_new_tokens=max_new_tokens, key=key)
    drawn = await scorer.draw(0, NUM_TRIED)
    lengths = [len(prompt.tokens) // 4 for prompt in drawn.prompts]
    check_lengths(lengths, most=most, max_new_tokens=max_new_tokens, key=key)
    return most


def longest_question(config: LearnerConfig, model_dir: Path) -> int:
    """Return how many tokens a held-out prompt may have.

    Raises:
        ConfigError: none would fit.
    """
    if config.trainer.kind == "sleep" or not config.eval.every_steps:
        return MAX_PROMPT_TOKENS
    own = config.eval.max_new_tokens
    return longest_prompt(
        model_dir,
        max_new_tokens=own or config.rollouts.max_new_tokens,
        key="eval.max_new_tokens" if own else "rollouts.max_new_tokens",
    )
