"""What evaluations start from: the held-out prompts, and what an earlier process left."""

from dataclasses import dataclass
from typing import Any

import structlog

from echo2swarm.system.errors import SwarmError
from learner.evaluation.held_out import draw_held_out
from learner.evaluation.round import EvaluationRound, RoundPlan
from learner.ledger.evaluations import Evaluations
from learner.rollouts.prompts import usable_prompts
from learner.scoring.messages import Prompt
from learner.scoring.ports import HeldOut

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEvaluation:
    """What there is before the first version is evaluated."""

    prompts: list[Prompt]
    evaluated: int | None
    """The newest version of which an evaluation was begun, or given up."""
    newest_figures: dict[str, Any] | None
    """What the newest evaluation found that found something."""
    unfinished: EvaluationRound | None
    """The evaluation to go on with."""


async def open_evaluation(
    held_out: HeldOut, plan: RoundPlan, record: Evaluations, *, num_prompts: int
) -> OpenedEvaluation:
    """Draw the prompts, and take up what an earlier process left.

    Raises:
        SwarmError: there are no prompts, or none that fit.
    """
    drawn = await draw_held_out(held_out.scorer, num_prompts, num_known=held_out.num_prompts)
    prompts = usable_prompts(drawn, held_out.max_tokens)
    if not prompts:
        raise SwarmError("[eval]: the task's held-out prompts are all empty or too long")
    before = await record.open(prompts)
    if before.are_other_prompts:
        log.warning(
            "evaluation.prompts_changed",
            why="the held-out prompts are not those of this run's earlier evaluations: their "
            "figures can't be compared with those from now on",
        )
    evaluated: int | None = before.newest_version
    left, unfinished = before.unfinished, None
    if left is not None and left.is_of(
        num_prompts=len(prompts),
        samples_per_prompt=plan.samples_per_prompt,
        sampling=plan.sampling,
    ):
        unfinished = EvaluationRound(
            left.version,
            prompts,
            plan,
            answers=left.answers,
            leases=left.leases,
            num_leases=left.num_leases,
        )
        log.info("evaluation.resumed", version=left.version, num_answers=len(left.answers))
    elif left is not None:
        await record.abandoned(left.version)
        evaluated = left.version - 1
        log.info("evaluation.abandoned", version=left.version, why="[eval] was changed")
    return OpenedEvaluation(
        prompts=prompts,
        evaluated=evaluated,
        newest_figures=before.newest_figures,
        unfinished=unfinished,
    )
