"""How often a trainer that dies is started again, without I/O."""

from dataclasses import dataclass
from typing import Final

MAX_RESTARTS: Final = 3
"""Of the trainer, without a new update in between."""
_FIRST_WAIT_S: Final = 5.0
_GROWTH: Final = 6
"""The third try comes half a minute after the second."""


@dataclass(slots=True)
class Restarts:
    """Counts the deaths of the trainer that no new update came between."""

    _num: int = 0
    _step: int = -1

    def may_restart(self, step: int) -> bool:
        """Note that the trainer died after ``step`` updates; return whether to try again."""
        # Updates that were recorded are made again after a start, and count as before.
        self._num = 1 if step > self._step else self._num + 1
        self._step = max(self._step, step)
        return self._num <= MAX_RESTARTS

    @property
    def wait_s(self) -> float:
        """How long to wait before the next try: other programs may give memory back meanwhile."""
        return 0.0 if self._num <= 1 else _FIRST_WAIT_S * _GROWTH ** (self._num - 2)
