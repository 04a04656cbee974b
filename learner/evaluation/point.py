"""One point of the curve: what an evaluation of one version found, and how it is told."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from learner.evaluation.round import EvaluationRound
from learner.evaluation.statistics import Figures, Interval95, figures

_ESTIMATES = ("mean_at_k", "pass_at_1", "pass_at_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was found; only prompts that have all their samples count."""

    version: int
    num_wanted: int
    """Prompts that were asked."""
    figures: Figures
    num_failed: int
    """Completions that the verifier failed on; they count as 0."""
    num_tokens: int
    num_truncated: int
    took_s: float

    @property
    def is_complete(self) -> bool:
        """Whether every prompt counts."""
        return self.figures.num_prompts == self.num_wanted

    @property
    def mean_text(self) -> str:
        """The mean reward with its interval, for people."""
        mean = self.figures.mean_at_k
        return f"{mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}]"

    def as_dict(self) -> dict[str, Any]:
        """Return it as the ledger keeps it."""
        found = self.figures
        return {
            "version": self.version,
            "num_prompts": found.num_prompts,
            "num_prompts_wanted": self.num_wanted,
            "samples_per_prompt": found.samples_per_prompt,
            **{name: asdict(_estimate(found, name)) for name in _ESTIMATES},
            "num_failed": self.num_failed,
            "num_tokens": self.num_tokens,
            "num_truncated": self.num_truncated,
            "took_s": self.took_s,
        }

    def as_metrics(self, *, unix_s: float) -> dict[str, Any]:
        """Return its line of ``metrics.jsonl``; see ``docs/metrics.md``."""
        found, num = self.figures, self.figures.num_prompts * self.figures.samples_per_prompt
        line: dict[str, Any] = {"unix_s": unix_s, "eval/version": self.version}
        for name in _ESTIMATES:
            estimate = _estimate(found, name)
            line[f"eval/{name}"] = estimate.value
            line[f"eval/{name}_low"], line[f"eval/{name}_high"] = estimate.low, estimate.high
        return line | {
            "eval/num_prompts": found.num_prompts,
            "eval/samples_per_prompt": found.samples_per_prompt,
            "eval/is_complete": self.is_complete,
            "eval/num_failed": self.num_failed,
            "eval/tokens_mean": self.num_tokens / num,
            "eval/truncated_share": self.num_truncated / num,
            "eval/took_s": self.took_s,
        }


def point_of(found: EvaluationRound, *, num_wanted: int, took_s: float) -> Point | None:
    """Return what a round found; None if no prompt has all its samples."""
    rewards_NK = found.rewards_NK()
    if not rewards_NK:
        return None
    counted = found.counted()
    return Point(
        version=found.version,
        num_wanted=num_wanted,
        figures=figures(rewards_NK, None),
        num_failed=sum(answer.is_failed for answer in counted),
        num_tokens=sum(answer.num_tokens for answer in counted),
        num_truncated=sum(answer.is_truncated for answer in counted),
        took_s=took_s,
    )


def _estimate(found: Figures, name: str) -> Interval95:
    by_name: Mapping[str, Interval95] = {
        "mean_at_k": found.mean_at_k,
        "pass_at_1": found.pass_at_1,
        "pass_at_k": found.pass_at_k,
    }
    return by_name[name]
