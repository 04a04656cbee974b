"""Frames over one TLS connection."""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from echo2swarm.network.base import Data
from echo2swarm.network.bulk.socket import BrokenError, Filling, TlsSocket
from echo2swarm.system.errors import NetworkError
from protocols.errors import RemoteProtocolError
from protocols.framing import HEADER_BYTES, frame_length
from protocols.ids import PeerId, short

RECORD_BYTES: Final = 16 * 1024
"""What fits into one TLS record."""


class TlsStream:
    """Implements :class:`echo2swarm.network.base.Stream`.

    Args:
        connection: ours from now on; its ends have proven who they are.
        peer: who is at the other end.
        max_frame_bytes: a longer one is not read.
        on_closed: called once the connection is closed.
    """

    def __init__(
        self,
        connection: TlsSocket,
        peer: PeerId,
        max_frame_bytes: int,
        *,
        on_closed: Callable[[], object],
    ) -> None:
        self._on_closed = on_closed
        self._connection = connection
        self._peer = peer
        self._max_frame_bytes = max_frame_bytes
        self._header = Filling(HEADER_BYTES)
        self._body: Filling | None = None
        self._send_lock = trio.Lock()
        self._receive_lock = trio.Lock()
        self._can_send = True
        self._can_receive = True

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven by its key."""
        return self._peer

    @property
    def num_arrived_bytes(self) -> int:
        """How much is here of the frame that is being received."""
        return self._header.num_bytes if self._body is None else self._body.num_bytes

    async def send(self, *parts: Data) -> None:
        """Send one frame."""
        async with self._send_lock:
            if not self._can_send:
                raise NetworkError(f"stream to {short(self._peer)} broke")
            # Until the frame is out whole: what follows half a frame is noise.
            self._can_send = False
            try:
                for piece in _pieces(parts):
                    await self._connection.send(piece)
            except BrokenError as exc:
                raise NetworkError(f"stream to {short(self._peer)} broke: {exc}") from exc
            self._can_send = True

    async def receive(self) -> bytes:
        """Return the next frame."""
        return bytes(await self.receive_view())

    async def receive_view(self) -> memoryview:
        """Return the next frame, where it was decrypted to."""
        async with self._receive_lock:
            if not self._can_receive:
                raise NetworkError(f"stream from {short(self._peer)} broke")
            try:
                body = await self._next_body()
                await self._connection.fill(body)
            except BrokenError as exc:
                self._can_receive = False
                is_between = self._body is None and not self._header.num_bytes
                where = "between frames" if is_between else "in mid-frame"
                raise NetworkError(f"stream from {short(self._peer)} ended {where}: {exc}") from exc
            except RemoteProtocolError:
                self._can_receive = False
                raise
            self._body = None
            return body.view

    async def _next_body(self) -> Filling:
        if self._body is None:
            await self._connection.fill(self._header)
            length = frame_length(bytes(self._header.view), max_bytes=self._max_frame_bytes)
            self._header, self._body = Filling(HEADER_BYTES), Filling(length)
        return self._body

    async def finish(self, *, is_done: bool) -> None:
        """Close the stream, or reset it if not ``is_done``. Never raises, takes 2 s at most."""
        if not is_done:
            self.reset()
            return
        self._can_send = self._can_receive = False
        try:
            await self._connection.end()
        finally:
            self._on_closed()

    def reset(self) -> None:
        """Break the stream off."""
        self._can_send = self._can_receive = False
        self._connection.cut()
        self._on_closed()


def _pieces(parts: Sequence[Data]) -> list[Data]:
    """Return a frame of ``parts`` as it travels, the header joined to what comes first."""
    head = bytearray(sum(map(len, parts)).to_bytes(HEADER_BYTES, "big"))
    rest: list[Data] = []
    for part in parts:
        room_bytes = RECORD_BYTES - len(head)
        head += part[:room_bytes]
        if len(part) > room_bytes:
            rest.append(memoryview(part)[room_bytes:])
    return [bytes(head), *rest]
