"""What is known of a run afterwards, in the form that report and plots want.

Times are seconds since the run's first event. What the run directory does not
tell is None or empty, and named in :attr:`RunRecord.missing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from echo2swarm.report.engine_drift import NodeDrift
from echo2swarm.report.fairness import Shares
from protocols.status import NodeStatus, ReasonCount

WINDOW_STEPS: Final = 10
"""The first and the last this many steps are compared, or half of a shorter run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One update of the learner."""

    step: int
    """Steps done with it."""
    end_s: float
    """When the optimizer's step was done."""
    reward_mean: float | None
    wait_s: float
    """For rollouts, before it."""
    train_s: float
    write_s: float
    """The trainer wrote the weights to be published, after it; 0 if there were none."""
    publish_s: float
    """Hashing and announcing them, beside the next update."""
    staleness: tuple[tuple[int, int], ...] = ()
    """(staleness, rollouts) of its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """Something that went on from one time to another."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """How one version spread."""

    version: int
    published_s: float
    payload_bytes: int | None
    """Of the weights whole."""
    delta_bytes: int | None
    """What a node fetches instead that holds the version before; None if it has to fetch all."""
    applied_s: tuple[tuple[str, float], ...]
    """Which node sampled with it from when on."""

    @property
    def spread_s(self) -> float | None:
        """Seconds from publish to applied by the last node that applied it."""
        return max(at for _, at in self.applied_s) - self.published_s if self.applied_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure, and where it lies with 95 % confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """One version, evaluated on held-out prompts."""

    version: int
    num_prompts: int
    """Those that count: with all their samples."""
    num_prompts_wanted: int
    samples_per_prompt: int
    """The k of mean@k."""
    mean_at_k: Interval
    pass_at_1: Interval
    pass_at_k: Interval
    num_failed: int
    """Completions that the verifier failed on; they count as 0."""
    took_s: float

    @property
    def is_complete(self) -> bool:
        """Whether every prompt counts."""
        return self.num_prompts == self.num_prompts_wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run."""

    run_id: str
    phase: str
    num_steps: int
    """How many it was to have."""
    max_staleness: int
    publish_every: int
    duration_s: float
    steps: tuple[StepRecord, ...]
    staleness: tuple[tuple[int, int], ...] | None
    """(staleness, trained rollouts), from the ledger; None if it can't be read."""
    broadcasts: tuple[Broadcast, ...]
    training: tuple[TimeSpan, ...]
    generation: tuple[tuple[str, tuple[TimeSpan, ...]], ...]
    """Per node: from a lease's start to its last accepted rollout."""
    learner_bytes_sent: int | None
    nodes: tuple[NodeStatus, ...]
    refusals: tuple[ReasonCount, ...]
    worst_heartbeat_delay_s: float | None
    missing: tuple[str, ...]
    shares: tuple[Shares, ...] = ()
    """Rollouts issued, accepted and trained, by kind; empty if the ledger can't be read."""
    contributions: tuple[NodeDrift, ...] = ()
    """Of each node with an accepted rollout, by engine and name."""
    evaluations: tuple[EvalRecord, ...] = ()
    """Those that found something, by version."""
    num_evaluations_dropped: int = 0
    """Those that found nothing."""
    skipped_prompts: tuple[str, ...] = ()
    """Prompts that were left out, by file and line or number, with the reason."""

    @property
    def rewards(self) -> list[float]:
        """Mean reward of each step that has one."""
        return [s.reward_mean for s in self.steps if s.reward_mean is not None]


def reward_gain(rewards: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean of the first and of the last ten rewards, or halves of a shorter list."""
    window = min(WINDOW_STEPS, len(rewards) // 2)
    if not window:
        return None
    return sum(rewards[:window]) / window, sum(rewards[-window:]) / window


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and up to ``window - 1`` before it."""
    return [
        sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))
    ]


def overlap_s(spans: Sequence[TimeSpan], others: Sequence[TimeSpan]) -> float:
    """Return how long something of ``spans`` and something of ``others`` went on at once."""
    return _length(_intersection(_union(spans), _union(others)))


def busy_share(steps: Sequence[StepRecord]) -> float | None:
    """Return the share of time spent on updates, from the end of the first step on.

    What came before the first update's end is the start of the run, and is left out.
    """
    if len(steps) < 2:
        return None
    elapsed_s = steps[-1].end_s - steps[0].end_s
    return min(1.0, sum(s.train_s for s in steps[1:]) / elapsed_s) if elapsed_s > 0 else None


def _union(spans: Sequence[TimeSpan]) -> list[TimeSpan]:
    merged: list[TimeSpan] = []
    for span in sorted(spans, key=lambda s: s.start_s):
        if merged and span.start_s <= merged[-1].end_s:
            end_s = max(merged[-1].end_s, span.end_s)
            merged[-1] = TimeSpan(start_s=merged[-1].start_s, end_s=end_s)
        else:
            merged.append(span)
    return merged


def _intersection(first: Sequence[TimeSpan], second: Sequence[TimeSpan]) -> list[TimeSpan]:
    return [
        TimeSpan(start_s=start_s, end_s=end_s)
        for a in first
        for b in second
        if (start_s := max(a.start_s, b.start_s)) < (end_s := min(a.end_s, b.end_s))
    ]


def _length(spans: Sequence[TimeSpan]) -> float:
    return sum(s.end_s - s.start_s for s in spans)
