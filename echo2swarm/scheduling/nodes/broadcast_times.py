"""How long versions take from being published to being applied by one node."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

_KEPT: Final = 8
"""Versions back: links and nodes change."""
_SLOW: Final = 0.8
"""Of the last eight, all but one are applied within the slow time."""


@dataclass(slots=True)
class BroadcastTimes:
    """The last ones of one node."""

    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def __len__(self) -> int:
        """Return how many are known."""
        return len(self._seconds)

    def add(
        self, *, joined_at_s: float, published_at_s: float, applied_at_s: float
    ) -> float | None:
        """Note that a version was applied.

        Args:
            joined_at_s: since when the node takes part. One that came later than the version
                measures its own start-up, not the broadcast.
            published_at_s: when the version was published.
            applied_at_s: when the node was seen to have applied it.

        Returns:
            how long that took; None if it does not count.
        """
        if joined_at_s > published_at_s:
            return None
        self._seconds.append(applied_at_s - published_at_s)
        return self._seconds[-1]

    @property
    def last_s(self) -> float | None:
        """The last one."""
        return self._seconds[-1] if self._seconds else None

    @property
    def slow_s(self) -> float | None:
        """The 80th percentile.

        Not the maximum: one version that was held up would count for the eight that follow.
        """
        ranked = sorted(self._seconds)
        return ranked[int(_SLOW * len(ranked))] if ranked else None

    @property
    def usual_s(self) -> float | None:
        """The median."""
        return median(self._seconds) if self._seconds else None
