"""Virtual time: what is to happen next, in order; nothing else."""

import heapq
from collections.abc import Callable
from math import isfinite
from typing import Any


class EventClock:
    """A clock that jumps from event to event. Those of one time happen in the order of adding."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """Since the start."""
        self.num_events = 0
        """That have happened."""
        self._num_added = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._is_stopped = False

    def at(self, when_s: float, call: Callable[..., None], *args: object) -> None:
        """Call ``call(*args)`` at ``when_s``; at once, that is next, if it is past.

        Raises:
            ValueError: ``when_s`` is not a finite number.
        """
        if not isfinite(when_s):
            raise ValueError(f"{when_s} is no time")
        self._num_added += 1
        heapq.heappush(self._queue, (max(when_s, self.now_s), self._num_added, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Call ``call(*args)`` in ``delay_s`` seconds."""
        self.at(self.now_s + delay_s, call, *args)

    def stop(self) -> None:
        """Let nothing more happen."""
        self._is_stopped = True

    def run(self) -> None:
        """Let everything happen, until it is stopped or nothing is left to happen."""
        queue = self._queue
        while queue and not self._is_stopped:
            self.now_s, _, call, args = heapq.heappop(queue)
            self.num_events += 1
            call(*args)
