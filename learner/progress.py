"""How far the run is and how fast it goes, without I/O; what status and activation go by."""

from collections import deque
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import Final

from echo2swarm.capacity import Delays, Workload, provisioned_rollouts_per_s
from echo2swarm.rates import Phase, Timeline, WindowSum
from learner.config import RolloutTable

WINDOW_S: Final = 300.0
_KEPT: Final = 2000


class RecentValues:
    """Measurements of the last minutes."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def add(self, value: float, now_s: float) -> None:
        """Enter one measurement."""
        self._values.append((now_s, value))

    def get(self, now_s: float) -> list[float]:
        """Return those of the window; the last one however old it is."""
        recent = [value for at_s, value in self._values if at_s >= now_s - self._window_s]
        return recent or [value for _, value in list(self._values)[-1:]]


def p95(values: list[float]) -> float | None:
    """Return the 95th percentile (the largest of fewer than 20), or None of none."""
    if not values:
        return None
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


@dataclass(slots=True, kw_only=True)
class Progress:
    """The learner's position and pace."""

    step: int
    """Updates done."""
    num_steps: int
    started_s: float
    rollouts: RolloutTable
    timeline: Timeline
    is_finished: bool = False
    reward_mean: float | None = None
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

    def __post_init__(self) -> None:
        """Begin to measure."""
        self.accepted = WindowSum(WINDOW_S, started_s=self.started_s)

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

    def needed_rollouts_per_s(self, now_s: float) -> float | None:
        """Return the supply that keeps the learner busy, headroom included.

        None while that isn't known, or if no supply would: then more is always better.
        """
        train_s = self.typical_train_s(now_s)
        if not train_s:
            return None
        workload = Workload(
            rollouts_per_step=self.rollouts_per_step,
            train_s=train_s,
            max_staleness=self.rollouts.max_staleness,
            publish_every=self.rollouts.publish_every,
        )
        delays = Delays(
            broadcast_s=p95(self.broadcast_s.get(now_s)) or 0.0,
            rollout_s=p95(self.rollout_s.get(now_s)) or 0.0,
        )
        needed = provisioned_rollouts_per_s(workload, delays, headroom=self.rollouts.headroom)
        return needed if isfinite(needed) else None

    def advice(self, now_s: float, *, num_nodes: int) -> str:
        """Return what the run owner could do, in one sentence."""
        if self.is_finished:
            return "the run is finished"
        if not num_nodes:
            return "no node is connected: hand out the ticket"
        needed = self.needed_rollouts_per_s(now_s)
        if self.typical_train_s(now_s) is None:
            return "measuring"
        if needed is None:
            return (
                "the learner waits for every version: a larger max_staleness would overlap "
                "training with generation"
            )
        bubble = self.timeline.shares(now_s, WINDOW_S).get(Phase.WAITING, 0.0)
        if bubble > 0.1:
            supplied = self.accepted.per_s(now_s)
            return (
                f"add nodes: {supplied:.2f} rollouts/s are supplied, {needed:.2f} keep the "
                "learner busy"
            )
        return "the learner is busy"
