"""Rates and shares over the last minutes, without a clock: the caller passes the time."""

from collections import deque
from enum import StrEnum
from itertools import pairwise
from typing import Final


class WindowSum:
    """Sums amounts that were added within the last ``window_s`` seconds."""

    def __init__(self, window_s: float, *, started_s: float) -> None:
        self._window_s = window_s
        self._started_s = started_s
        self._amounts: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Count ``amount``."""
        self._amounts.append((now_s, amount))
        self._sum += amount
        self._forget(now_s)

    def per_s(self, now_s: float) -> float:
        """Return the sum per second of the window, or of what has passed of the first one."""
        self._forget(now_s)
        return self._sum / max(1.0, min(self._window_s, now_s - self._started_s))

    def _forget(self, now_s: float) -> None:
        while self._amounts and self._amounts[0][0] < now_s - self._window_s:
            self._sum -= self._amounts.popleft()[1]
        if not self._amounts:
            self._sum = 0.0


class WorkingRate:
    """What somebody does per second *while working*; older work counts less and less.

    A node that waits for leases is not slow: its waiting is left out.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._amount = 0.0
        self._working_s = 0.0
        self._pending_s = 0.0
        """Working time since the last result."""
        self._since_s: float | None = None

    def set_working(self, is_working: bool, now_s: float) -> None:
        """Note whether there is work from now on."""
        self._elapse(now_s)
        self._since_s = now_s if is_working else None

    def add(self, amount: float, now_s: float) -> None:
        """Count a result."""
        self._elapse(now_s)
        keep = 0.5 ** (self._pending_s / self._half_life_s)
        self._amount = self._amount * keep + amount
        self._working_s = self._working_s * keep + self._pending_s
        self._pending_s = 0.0

    def per_s(self) -> float | None:
        """Return the rate, or None before there was any result of any working time."""
        return self._amount / self._working_s if self._working_s > 0 else None

    def _elapse(self, now_s: float) -> None:
        if self._since_s is not None:
            self._pending_s += max(0.0, now_s - self._since_s)
            self._since_s = now_s


class LearnerPhase(StrEnum):
    """What the learner is doing; the value is what status and logs show."""

    STARTING = "starting"
    WAITING = "waiting"
    """For rollouts: the bubble."""
    TRAINING = "training"
    PUBLISHING = "publishing"
    """The trainer writes weights; nothing else of publishing holds it up."""
    CHECKPOINTING = "checkpointing"
    EVALUATING = "evaluating"
    """The last version, once training is over; before, evaluations go on beside it."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """By its owner, before the last step."""
    FAILED = "failed"


_KEPT_CHANGES: Final = 10_000


class Timeline:
    """Which phase the learner was in, when, and for how long in all."""

    def __init__(self, now_s: float) -> None:
        self._changes: deque[tuple[float, LearnerPhase]] = deque(
            [(now_s, LearnerPhase.STARTING)], _KEPT_CHANGES
        )
        self._totals_s: dict[LearnerPhase, float] = {}

    @property
    def phase(self) -> LearnerPhase:
        """What the learner is doing now."""
        return self._changes[-1][1]

    def enter(self, phase: LearnerPhase, now_s: float) -> float:
        """Begin ``phase``; returns how long the one before took."""
        since_s, before = self._changes[-1]
        self._totals_s[before] = self._totals_s.get(before, 0.0) + now_s - since_s
        self._changes.append((now_s, phase))
        return now_s - since_s

    def totals_s(self, now_s: float) -> dict[LearnerPhase, float]:
        """Return the seconds spent in each phase so far."""
        totals = dict(self._totals_s)
        since_s, phase = self._changes[-1]
        totals[phase] = totals.get(phase, 0.0) + now_s - since_s
        return totals

    def shares(self, now_s: float, window_s: float) -> dict[LearnerPhase, float]:
        """Return each phase's share of the last ``window_s``, its start-up left out."""
        begin_s = now_s - window_s
        spans_s: dict[LearnerPhase, float] = {}
        for (start_s, phase), (end_s, _) in pairwise([*self._changes, (now_s, self.phase)]):
            span_s = end_s - max(start_s, begin_s)
            if span_s > 0 and phase is not LearnerPhase.STARTING:
                spans_s[phase] = spans_s.get(phase, 0.0) + span_s
        total_s = sum(spans_s.values())
        return {phase: span_s / total_s for phase, span_s in spans_s.items()} if total_s else {}
