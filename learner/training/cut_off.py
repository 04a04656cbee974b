"""Notices that every completion runs to the limit: the model never ends one.

Rarely is that what was wanted: the tokens that end a completion are not those that this model
was trained to write, or ``rollouts.max_new_tokens`` is too low. The core is pure.
"""

from dataclasses import dataclass
from typing import Any, Final

import structlog

LEAST: Final = 32
"""Completions in a row before it is said; then at twice as many, ..."""

log = structlog.get_logger()


@dataclass(slots=True)
class CutOffs:
    """Counts completions since the last one that ended by itself."""

    _num_in_a_row: int = 0
    _due: int = LEAST

    def look(self, *, num_rollouts: int, truncated_share: float) -> int | None:
        """Take in an update's completions; return how many were cut in a row if it is time to."""
        if truncated_share < 1:
            self._num_in_a_row, self._due = 0, LEAST
            return None
        self._num_in_a_row += num_rollouts
        if self._num_in_a_row < self._due:
            return None
        while self._due <= self._num_in_a_row:
            self._due *= 2
        return self._num_in_a_row


def warn_of_cut_offs(cut_offs: CutOffs, metrics: dict[str, Any], *, max_new_tokens: int) -> None:
    """Look at an update's line of metrics, and log what is wrong with it."""
    num = cut_offs.look(
        num_rollouts=metrics["num_rollouts"], truncated_share=metrics["truncated_share"]
    )
    if num is None:
        return
    log.warning(
        "completions.all_cut",
        count=num,
        max_new_tokens=max_new_tokens,
        why="none of the last completions ended by itself: each was cut at rollouts.max_new_tokens",
        next="see whether the model's end-of-sequence tokens are right (generation_config.json), "
        "set task.stop, or raise rollouts.max_new_tokens",
    )
