"""What evaluations of a run found, told: in the metrics, in the log, in ``swarm status``."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from echo2swarm.system.jsonl import JsonLines
from learner.evaluation.point import Point
from learner.evaluation.round import EvaluationRound
from learner.ledger.evaluations import Outcome
from protocols.status import Estimate, EvaluationPoint

log = structlog.get_logger()


class EvaluationMetrics:
    """Tells of each evaluation that is over.

    Args:
        metrics: gets a line for each.
    """

    def __init__(self, metrics: JsonLines) -> None:
        self._metrics = metrics
        self._newest: EvaluationPoint | None = None

    @property
    def newest(self) -> EvaluationPoint | None:
        """The newest point of the curve, as ``swarm status`` shows it."""
        return self._newest

    def recall(self, figures: Mapping[str, Any]) -> None:
        """Take the newest point from what the ledger keeps of it."""
        self._newest = _shown(figures)

    def write(self, point: Point) -> None:
        """Write a line of metrics."""
        try:
            self._metrics.write(point.as_metrics(unix_s=time.time()))
        except OSError as exc:
            log.error("metrics.not_written", version=point.version, error=exc.strerror)

    def say(self, found: EvaluationRound, point: Point | None, outcome: Outcome, why: str) -> None:
        """Log what was found, or why nothing was; from now on it is the newest point."""
        if point is None:
            log.warning(
                "evaluation.dropped",
                version=found.version,
                why=why,
                num_answers=f"{len(found.answers)}/{found.num_wanted}",
            )
            return
        self._newest = _shown(point.as_dict())
        tell: Callable[..., object] = log.info if point.is_complete else log.warning
        tell(
            f"evaluation.{outcome.value}",
            version=point.version,
            mean_at_k=point.mean_text,
            pass_at_1=round(point.figures.pass_at_1.value, 4),
            k=point.figures.samples_per_prompt,
            num_prompts=f"{point.figures.num_prompts}/{point.num_wanted}",
            took_s=round(point.took_s, 1),
            **({} if point.is_complete else {"why": why}),
        )


def _shown(figures: Mapping[str, Any]) -> EvaluationPoint:
    """Return a point as the ledger keeps it in the form of ``swarm status``."""
    return EvaluationPoint(
        version=figures["version"],
        samples_per_prompt=figures["samples_per_prompt"],
        num_prompts=figures["num_prompts"],
        num_prompts_wanted=figures["num_prompts_wanted"],
        mean_at_k=Estimate(**figures["mean_at_k"]),
        pass_at_1=Estimate(**figures["pass_at_1"]),
    )
