"""How often a trainer that dies is started again, without I/O."""

from dataclasses import dataclass
from typing import Final

MAX_RESTARTS: Final = 3
"""Of the trainer, without a new update in between."""


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
