"""How far the run is and how fast it goes, without I/O; what status and activation go by."""

from dataclasses import dataclass, field
from math import ceil, isfinite
from statistics import median
from typing import Final

from echo2swarm.scheduling.capacity import (
    Delays,
    Forecast,
    LearnerLoad,
    RecentValues,
    forecast,
    percentile_95,
    provisioned_rollouts_per_s,
)
from echo2swarm.scheduling.capacity.model import MIN_TRAIN_S
from echo2swarm.system.rates import LearnerPhase, Timeline, WindowSum
from learner.config import RolloutConfig
from learner.state.skipped_prompts import LeftOut

WINDOW_S: Final = 300.0
_OWN_PHASES: Final = (LearnerPhase.PUBLISHING, LearnerPhase.CHECKPOINTING)
"""In which the learner neither trains nor waits for rollouts."""


def p95_or_none(values: list[float]) -> float | None:
    """Return the 95th percentile (the largest of fewer than 20), or None of none."""
    return percentile_95(values) if values else None


@dataclass(slots=True, kw_only=True)
class LearnerProgress:
    """The learner's position and pace."""

    step: int
    """Updates done."""
    num_steps: int
    started_s: float
    rollouts: RolloutConfig
    timeline: Timeline
    is_finished: bool = False
    reward_mean: float | None = None
    used_share: float = 1.0
    """Of complete groups, lately: the others are without signal, and replaced."""
    num_evaluated: int = 0
    """Samples of evaluations that were judged, since this process started."""
    num_too_costly: int = 0
    """Completions whose answer was refused unscored, as it would take too long to compute."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """Prompts that training goes on without."""
    num_skipped_steps: int = 0
    """Updates that were not applied, since this process started."""
    train_s: RecentValues = field(default_factory=lambda: RecentValues(WINDOW_S))
    step_s: RecentValues = field(default_factory=lambda: RecentValues(WINDOW_S))
    """From one update's end to the next one's."""
    broadcast_s: RecentValues = field(default_factory=lambda: RecentValues(WINDOW_S))
    rollout_s: RecentValues = field(default_factory=lambda: RecentValues(WINDOW_S))
    """From a lease to its last result."""
    loop_delay_s: RecentValues = field(default_factory=lambda: RecentValues(WINDOW_S))
    staleness: dict[int, int] = field(default_factory=dict)
    """As the ledger counts it."""
    accepted: WindowSum = field(init=False)
    """Rollouts."""
    refused: WindowSum = field(init=False)
    """Rollouts that came and were no good."""
    dropped: WindowSum = field(init=False)
    """Rollouts that were accepted, and then no update could use."""
    trained_tokens: WindowSum = field(init=False)

    def __post_init__(self) -> None:
        """Begin to measure."""
        self.accepted = WindowSum(WINDOW_S, started_s=self.started_s)
        self.refused = WindowSum(WINDOW_S, started_s=self.started_s)
        self.dropped = WindowSum(WINDOW_S, started_s=self.started_s)
        self.trained_tokens = WindowSum(WINDOW_S, started_s=self.started_s)

    @property
    def rollouts_per_step(self) -> int:
        """R."""
        return self.rollouts.prompts_per_step * self.rollouts.group_size

    def typical_train_s(self, now_s: float) -> float | None:
        """T: the median."""
        values = self.train_s.get(now_s)
        return median(values) if values else None

    def typical_step_s(self, now_s: float) -> float | None:
        """T': the median period of the learner, waiting included."""
        values = self.step_s.get(now_s)
        return median(values) if values else None

    def workload(self, now_s: float) -> LearnerLoad | None:
        """Return what the learner does, as measured; None before the first update."""
        train_s = self.typical_train_s(now_s)
        if train_s is None or train_s < MIN_TRAIN_S:
            return None
        shares = self.timeline.shares(now_s, WINDOW_S)
        training = shares.get(LearnerPhase.TRAINING, 0.0)
        own = sum(shares.get(phase, 0.0) for phase in _OWN_PHASES)
        return LearnerLoad(
            rollouts_per_step=ceil(self.rollouts_per_step / self.used_share - 1e-9),
            train_s=train_s,
            max_staleness=self.rollouts.max_staleness,
            publish_every=self.rollouts.publish_every,
            overhead_s=train_s * own / training if training else 0.0,
        )

    def delays(self, now_s: float) -> Delays:
        """Return B and g, as measured; 0 for what has not been."""
        rollout = self.rollout_s.estimate(now_s)
        rollout_s = rollout.p95 if rollout else 0.0
        return Delays(
            broadcast_s=p95_or_none(self.broadcast_s.get(now_s)) or 0.0,
            rollout_s=rollout_s,
            # Leases wait on their nodes for each other, and are held all the while.
            occupied_s=rollout_s,
            rollout_times_s=rollout.quantiles() if rollout else (),
        )

    def forecast(self, now_s: float, *, rollouts_per_s: float) -> Forecast | None:
        """Return what nodes that can make so much keep the learner at; None if not known yet."""
        workload = self.workload(now_s)
        if workload is None:
            return None
        return forecast(workload, self.delays(now_s), rollouts_per_s=rollouts_per_s)

    def needed_rollouts_per_s(self, now_s: float) -> float | None:
        """Return the supply that keeps the learner busy, headroom included.

        None while that isn't known, or if no supply would: then more is always better.
        """
        workload = self.workload(now_s)
        if workload is None:
            return None
        needed = provisioned_rollouts_per_s(
            workload, self.delays(now_s), headroom=self.rollouts.headroom
        )
        return needed if isfinite(needed) else None

    def refused_share(self, now_s: float) -> float | None:
        """Return the share of rollouts lately submitted that were refused; None of none."""
        refused = self.refused.per_s(now_s)
        submitted = self.accepted.per_s(now_s) + refused
        return refused / submitted if submitted > 0 else None

    def dropped_share(self, now_s: float) -> float | None:
        """Return the share of rollouts lately accepted that no update could use; None of none."""
        accepted = self.accepted.per_s(now_s)
        return min(1.0, self.dropped.per_s(now_s) / accepted) if accepted > 0 else None
