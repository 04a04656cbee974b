"""A stream as its handler sees it: its first frame has a deadline, and may be given up on."""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, TypeVar

import trio

from echo2swarm.network.admission.stream_seats import Seat, Seats
from echo2swarm.network.base import STALL_S, Data, IncomingStream, first_frame_s
from protocols.ids import PeerId

LOOK_S: Final = 1.0
"""So often it is looked how much of a first frame has come."""

T = TypeVar("T")


class ServedStream:
    """Implements :class:`echo2swarm.network.base.Stream`.

    Args:
        stream: as it came in.
        seats: those of its protocol.
        seat: its own.
        scope: of its handler; its deadline counts from when the first frame is here.
        timeout_s: how long it may last from then on.
    """

    def __init__(
        self,
        stream: IncomingStream,
        seats: Seats,
        seat: Seat,
        scope: trio.CancelScope,
        timeout_s: float,
    ) -> None:
        self.inner = stream
        self._seats = seats
        self._seat = seat
        self._scope = scope
        self._timeout_s = timeout_s
        self._opened_s = self._moved_s = trio.current_time()
        self._has_grace = True
        self._lock = trio.Lock()
        self.fault = ""
        """Why it was given up on, if it was."""

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven by its key."""
        return self.inner.peer

    async def send(self, *parts: Data) -> None:
        """Send one frame."""
        if self._seat.is_unread:
            await self._begin()
        await self.inner.send(*parts)

    async def receive(self) -> bytes:
        """Return the next frame."""
        if self._seat.is_unread:
            return await self._first(self.inner.receive)
        return await self.inner.receive()

    async def receive_view(self) -> memoryview:
        """Return the next frame, where that can be done without a copy."""
        if self._seat.is_unread:
            return await self._first(self.inner.receive_view)
        return await self.inner.receive_view()

    async def _first(self, receive: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            if not self._seat.is_unread:
                return await receive()
            self._scope.deadline = inf
            while True:
                with trio.move_on_at(min(self._due_s(), trio.current_time() + LOOK_S)) as look:
                    frame = await receive()
                if not look.cancelled_caught:
                    await self._begin()
                    return frame
                await self._look()

    def _due_s(self) -> float:
        """Return when more of the frame must be here."""
        by_size_s = self._opened_s + first_frame_s(self._seat.num_bytes)
        due_s = min(by_size_s, self._moved_s + STALL_S)
        # Where this process itself was held up, what has come was not looked at yet.
        return due_s if self._has_grace else due_s + LOOK_S

    async def _look(self) -> None:
        """See how much has come, and give up on it if that is too little."""
        now_s, num_bytes = trio.current_time(), self.inner.num_arrived_bytes
        is_due = now_s >= self._due_s()
        if num_bytes > self._seat.num_bytes:
            self._moved_s = now_s
        self._seats.arrived(self._seat, num_bytes)
        if not is_due or now_s < self._due_s():
            return
        if self._has_grace:
            self._has_grace = False
            return
        took_s = now_s - self._opened_s
        await self._give_up(f"no whole request within {took_s:.1f} s, {num_bytes} bytes of one")

    async def _begin(self) -> None:
        """Take a seat among those at work, or end."""
        if not self._seats.begin(self._seat):
            await self._give_up("too many requests are being answered")
        self._scope.deadline = trio.current_time() + self._timeout_s

    async def _give_up(self, fault: str) -> None:
        self.fault = self.fault or fault
        self._scope.cancel()
        await trio.lowlevel.checkpoint()
