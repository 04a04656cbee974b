"""What a node measures of itself for its owner; without a clock."""

from collections import deque
from typing import Final

WINDOW_S: Final = 5.0


class LinkMeter:
    """Bytes per second over the last few seconds, from counters looked at now and then."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def look(self, now_s: float, *, sent_bytes: int, received_bytes: int) -> None:
        """Take the counters as they are now."""
        self._samples.append((now_s, sent_bytes, received_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()

    @property
    def up_bytes_per_s(self) -> float:
        """What went out lately."""
        return self._rate(1)

    @property
    def down_bytes_per_s(self) -> float:
        """What came in lately."""
        return self._rate(2)

    def _rate(self, column: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        return (last[column] - first[column]) / max(last[0] - first[0], 1e-3)


class ActiveTime:
    """How long the node was wanted, and working."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._since_s: float | None = None

    def look(self, now_s: float, *, is_active: bool) -> None:
        """Note whether it is, as of now."""
        if self._since_s is not None:
            self._total_s += max(0.0, now_s - self._since_s)
        self._since_s = now_s if is_active else None

    def total_s(self, now_s: float) -> float:
        """Return how long that was by now."""
        return self._total_s + (0.0 if self._since_s is None else max(0.0, now_s - self._since_s))
