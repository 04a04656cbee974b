"""How many warnings about peers are written: strangers must not be able to fill a log."""

from typing import Final

BURST: Final = 30
"""So many in a row are written: enough to see what kind of trouble it is."""
REFILL_PER_S: Final = 0.2
"""After that, on average: 17,000 lines a day at the worst."""


class Throttle:
    """A token bucket over time that the caller passes in; counts what it held back."""

    def __init__(self, *, burst: int = BURST, refill_per_s: float = REFILL_PER_S) -> None:
        self._burst = burst
        self._refill_per_s = refill_per_s
        self._tokens = float(burst)
        self._at_s: float | None = None
        self._num_held_back = 0

    def admit(self, now_s: float) -> int | None:
        """Return how many were held back since the last that was admitted; None holds this back."""
        if self._at_s is not None:
            gained = max(0.0, now_s - self._at_s) * self._refill_per_s
            self._tokens = min(float(self._burst), self._tokens + gained)
        self._at_s = now_s
        if self._tokens < 1:
            self._num_held_back += 1
            return None
        self._tokens -= 1
        held_back, self._num_held_back = self._num_held_back, 0
        return held_back
