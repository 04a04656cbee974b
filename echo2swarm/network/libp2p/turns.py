"""Whose turn it is: so many a second for all strangers together, by turns among those who wait.

A handshake, and the opening of a stream, costs who is asked as much as who asks. A limit for each
peer would not do, for identities cost nothing; a limit for all would let whoever asks most take it
all. So there is one for all, and who waits is served by turns: a newcomer's first request goes
before another's second, however many that one has waiting.

Whose a request is, is a text: a peer's identity, or, before that is known, its address.
"""

import heapq
import itertools
from typing import Final

import trio

_ROUNDING: Final = 1e-6
"""So much of a token may lack after a sleep that was to bring a whole one."""


class FairQueue:
    """The order in which requests are served, without a clock.

    Each request gets a number: one more than the last of the same asker, and at least one more
    than that of the one served last. The smallest is next.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, str, trio.Event]] = []
        self._last_of: dict[str, int] = {}
        self._gone: set[trio.Event] = set()
        self._now = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting) - len(self._gone)

    def add(self, whose: str, event: trio.Event) -> None:
        """Let a request wait."""
        turn = max(self._now, self._last_of.get(whose, 0)) + 1
        self._last_of[whose] = turn
        heapq.heappush(self._waiting, (turn, next(self._numbers), whose, event))

    def forget(self, event: trio.Event) -> None:
        """Take back a request that waits."""
        self._gone.add(event)
        if 2 * len(self._gone) > len(self._waiting):
            self._tidy()

    def pop(self) -> trio.Event | None:
        """Return whose turn it is; None if nobody waits."""
        while self._waiting:
            self._now, _, whose, event = heapq.heappop(self._waiting)
            if self._last_of.get(whose) == self._now:
                del self._last_of[whose]
            if event not in self._gone:
                return event
            self._gone.discard(event)
        return None

    def _tidy(self) -> None:
        """Keep nothing of those who gave up, not even the turns that they would have had."""
        self._waiting = [each for each in self._waiting if each[3] not in self._gone]
        heapq.heapify(self._waiting)
        self._gone.clear()
        self._last_of.clear()
        for turn, _, whose, _ in self._waiting:
            self._last_of[whose] = max(turn, self._last_of.get(whose, 0))


class Turns:
    """Lets strangers through at a pace; :meth:`run` must run meanwhile."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._at_s = 0.0
        self._queue = FairQueue()
        self._has_come = trio.Event()

    def take_free(self) -> bool:
        """Take a turn at once, if no request waits and the pace allows one; return whether."""
        return not len(self._queue) and self._may_take()

    async def wait(self, whose: str) -> None:
        """Return when it is the turn of a request of ``whose``."""
        if self.take_free():
            await trio.lowlevel.checkpoint()
            return
        event = trio.Event()
        self._queue.add(whose, event)
        self._has_come.set()
        try:
            await event.wait()
        finally:
            if not event.is_set():
                self._queue.forget(event)

    async def run(self) -> None:
        """Serve who waits, until cancelled."""
        while True:
            if not len(self._queue):
                self._has_come = trio.Event()
                await self._has_come.wait()
            if not self._may_take():
                await trio.sleep((1 - self._tokens) / self._per_s)
                continue
            event = self._queue.pop()
            if event is None:
                self._tokens += 1
            else:
                event.set()

    def _may_take(self) -> bool:
        now_s = trio.current_time()
        gained = (now_s - self._at_s) * self._per_s
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._at_s = now_s
        if self._tokens < 1 - _ROUNDING:
            return False
        self._tokens -= 1
        return True
