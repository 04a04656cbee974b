"""Whose turn it is: so many a second for all strangers together, by turns among those who wait.

Opening a stream costs who is asked as much as who asks. A limit for each peer would not do, for
identities cost nothing; a limit for all would let whoever asks most take it all. So there is one
for all, and who waits is served by turns: a newcomer's first request goes before another's
second, however many that one has waiting.
"""

import heapq
import itertools
from typing import Final

import trio

from protocols.ids import PeerId

PER_S: Final = 100.0
BURST: Final = 400
"""So many in a row wait for nothing: a crowd of nodes that join at once."""


class FairQueue:
    """The order in which requests are served, without a clock.

    Each request gets a number: one more than the last of the same peer, and at least one more
    than that of the one served last. The smallest is next.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, PeerId, trio.Event]] = []
        self._last_of: dict[PeerId, int] = {}
        self._gone: set[trio.Event] = set()
        self._now = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting) - len(self._gone)

    def add(self, peer: PeerId, event: trio.Event) -> None:
        """Let a request wait."""
        turn = max(self._now, self._last_of.get(peer, 0)) + 1
        self._last_of[peer] = turn
        heapq.heappush(self._waiting, (turn, next(self._numbers), peer, event))

    def forget(self, event: trio.Event) -> None:
        """Take back a request that waits."""
        self._gone.add(event)
        if not len(self):
            self._clear()

    def pop(self) -> trio.Event | None:
        """Return whose turn it is; None if nobody waits."""
        while self._waiting:
            self._now, _, peer, event = heapq.heappop(self._waiting)
            if self._last_of.get(peer) == self._now:
                del self._last_of[peer]
            if event not in self._gone:
                return event
            self._gone.discard(event)
        return None

    def _clear(self) -> None:
        self._waiting.clear()
        self._last_of.clear()
        self._gone.clear()


class Turns:
    """Lets strangers through at a pace; :meth:`run` must run meanwhile."""

    def __init__(self, *, per_s: float = PER_S, burst: int = BURST) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._at_s = 0.0
        self._queue = FairQueue()
        self._has_come = trio.Event()

    async def wait(self, peer: PeerId) -> None:
        """Return when it is the turn of a request of ``peer``."""
        if not len(self._queue) and self._may_take():
            await trio.lowlevel.checkpoint()
            return
        event = trio.Event()
        self._queue.add(peer, event)
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
            while not self._may_take():  # noqa: ASYNC110 - only time brings the next
                await trio.sleep(1 / self._per_s)
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
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
