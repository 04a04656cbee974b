"""How long to wait before trying again: longer each time up to a cap, out of step with others."""

import random
from typing import Final

FIRST_S: Final = 1.0
CAP_S: Final = 60.0
JITTER: Final = 0.5
"""Each wait is drawn from its upper half: peers that lost the same one do not return at once."""


class Backoff:
    """Exponential back-off with jitter."""

    def __init__(
        self, rng: random.Random, *, first_s: float = FIRST_S, cap_s: float = CAP_S
    ) -> None:
        self._rng = rng
        self._first_s = first_s
        self._cap_s = cap_s
        self._ceiling_s = first_s

    def next_s(self) -> float:
        """Return the next wait, and double the one after it."""
        wait_s = self._ceiling_s * self._rng.uniform(1 - JITTER, 1)
        self._ceiling_s = min(2 * self._ceiling_s, self._cap_s)
        return wait_s

    def reset(self) -> None:
        """Start again from the shortest wait."""
        self._ceiling_s = self._first_s
