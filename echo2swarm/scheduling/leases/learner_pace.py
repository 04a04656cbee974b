"""When updates start and when versions were published: what a lease's deadline follows from."""

from collections import deque
from math import inf
from statistics import fmean, median
from typing import Final

from echo2swarm.scheduling import staleness
from protocols.ids import PolicyVersion

_KEPT: Final = 8
"""Periods; with ``publish_every`` > 1 they differ by turns, so their mean counts."""


class LearnerPace:
    """The learner's pace, measured by when it takes its batches.

    Args:
        next_step: the first update that needs a batch; nothing before it counts.
    """

    def __init__(self, next_step: int) -> None:
        self._next_step = next_step
        self._began_s: float | None = None
        self._last_start_s: float | None = None
        self._periods_s: deque[float] = deque(maxlen=_KEPT)
        self._usual_s: float | None = None
        self._attainable_s = inf
        self._busy_s: deque[float] = deque(maxlen=_KEPT)
        self._is_busy = False
        self.is_waiting = False
        """Whether it lacks groups for its next batch."""
        self._published_at_s: dict[PolicyVersion, float] = {}

    @property
    def next_step(self) -> int:
        """The next update that has no batch yet."""
        return self._next_step

    def batch_taken(
        self, next_step: int, now_s: float, *, attainable_s: float | None = None
    ) -> None:
        """Note that the update before ``next_step`` has its batch.

        Args:
            next_step: the next update.
            now_s: the present.
            attainable_s: the period that the nodes' supply allows for, where it is known. A
                longer one comes from waiting for few slow nodes, and is not planned with.
        """
        self._attainable_s = inf if attainable_s is None else attainable_s
        last_s, self._last_start_s = self._last_start_s, now_s
        if last_s is not None and now_s > last_s:
            self._periods_s.append(now_s - last_s)
            self._usual_s = min(fmean(self._periods_s), self._attainable_s)
        self._next_step = next_step
        self._is_busy, self.is_waiting = True, False

    def is_free(self, now_s: float) -> None:
        """Note that the learner is done with the last batch, and could go on."""
        if self._is_busy and self._last_start_s is not None:
            self._busy_s.append(now_s - self._last_start_s)
        self._is_busy = False

    @property
    def busy_s(self) -> float | None:
        """From a batch to when the learner could take the next one: the usual time."""
        return median(self._busy_s) if self._busy_s else None

    def period_s(self, now_s: float) -> float | None:
        """Return the period: the usual one, or the present one if that is longer already.

        None before two batches were taken.
        """
        if self._usual_s is None or self._last_start_s is None:
            return None
        return max(self._usual_s, now_s - self._last_start_s)

    def start_s(self, use_step: int, now_s: float) -> float:
        """Return when the update from ``use_step`` is expected to start; ``inf`` if unknown."""
        if self._usual_s is None or self._last_start_s is None:
            return inf
        return staleness.expected_start_s(
            use_step,
            next_step=self._next_step,
            last_start_s=self._last_start_s,
            period_s=self._usual_s,
            now_s=now_s,
        )

    def overdue_s(self, now_s: float) -> float:
        """Return for how long the learner has been waiting beyond its usual period."""
        if self._usual_s is None or self._last_start_s is None:
            return inf
        return max(0.0, now_s - self._last_start_s - self._usual_s)

    def num_periods_overdue(self, now_s: float, *, assumed_s: float = inf) -> float:
        """Return the same as a number of usual periods.

        Args:
            now_s: the present.
            assumed_s: the period before two batches were taken; the first one began when there
                was a version.
        """
        period_s = self._usual_s or assumed_s
        since_s = self._began_s if self._last_start_s is None else self._last_start_s
        if since_s is None:
            return 0.0
        return max(0.0, now_s - since_s - period_s) / period_s

    @property
    def published(self) -> dict[PolicyVersion, float]:
        """The versions that may still be of use, and when each was published."""
        return self._published_at_s

    def version_published(
        self, version: PolicyVersion, now_s: float, *, max_staleness: int
    ) -> None:
        """Note a published version; those that are too old for any update are forgotten."""
        self._published_at_s.setdefault(version, now_s)
        self._began_s = now_s if self._began_s is None else self._began_s
        oldest = staleness.oldest_usable_version(self._next_step, max_staleness=max_staleness)
        newest = max(self._published_at_s)
        self._published_at_s = {
            v: self._published_at_s[v]
            for v in sorted(self._published_at_s)
            if v >= oldest or v == newest
        }

    def version_at(
        self, start_s: float, *, applied: PolicyVersion, broadcast_s: float | None
    ) -> PolicyVersion:
        """Return the version that a node will have applied at ``start_s``."""
        if broadcast_s is not None:
            for version in reversed(self._published_at_s):  # the newest first
                if version <= applied:
                    break
                if self._published_at_s[version] + broadcast_s <= start_s:
                    return version
        return applied
