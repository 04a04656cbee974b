"""When updates start and when versions were published: what a lease's deadline follows from."""

from collections import deque
from math import inf
from statistics import median
from typing import Final

from echo2swarm import freshness
from protocols.ids import PolicyVersion

_KEPT: Final = 9
"""Periods; the middle one of them counts."""


class LearnerPace:
    """The learner's pace, measured by when it takes its batches.

    Args:
        next_step: the first update that needs a batch; nothing before it counts.
    """

    def __init__(self, next_step: int) -> None:
        self._next_step = next_step
        self._last_start_s: float | None = None
        self._periods_s: deque[float] = deque(maxlen=_KEPT)
        self._usual_s: float | None = None
        self._published_at_s: dict[PolicyVersion, float] = {}

    @property
    def next_step(self) -> int:
        """The next update that has no batch yet."""
        return self._next_step

    def batch_taken(self, next_step: int, now_s: float) -> None:
        """Note that the update before ``next_step`` has its batch."""
        last_s, self._last_start_s = self._last_start_s, now_s
        if last_s is not None and now_s > last_s:
            self._periods_s.append(now_s - last_s)
            self._usual_s = median(self._periods_s)
        self._next_step = next_step

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
        return freshness.expected_start_s(
            use_step,
            next_step=self._next_step,
            last_start_s=self._last_start_s,
            period_s=self._usual_s,
            now_s=now_s,
        )

    @property
    def published(self) -> dict[PolicyVersion, float]:
        """The versions that may still be of use, and when each was published."""
        return self._published_at_s

    def version_published(
        self, version: PolicyVersion, now_s: float, *, max_staleness: int
    ) -> None:
        """Note a published version; those that are too old for any update are forgotten."""
        self._published_at_s.setdefault(version, now_s)
        oldest = freshness.oldest_usable_version(self._next_step, max_staleness=max_staleness)
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
