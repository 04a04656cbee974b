"""Frames over one yamux stream: cancel-safe reads, flow control, an orderly end."""

from contextlib import suppress
from typing import Final

import trio
from libp2p.abc import INetStream

from echo2swarm.network.base import Data
from echo2swarm.network.libp2p.receive_buffer import ReceiveBuffer
from echo2swarm.network.libp2p.yamux import DATA_BYTES, BulkYamux
from echo2swarm.system.errors import NetworkError
from protocols.errors import RemoteProtocolError
from protocols.framing import HEADER_BYTES, frame_length
from protocols.ids import PeerId, short

BATCH_BYTES: Final = 4 * DATA_BYTES
"""What is written in one go. Others who share the connection wait for no more than that."""
CLOSE_S: Final = 2.0
_LOOK_S: Final = 0.05
"""So often a writer that waits looks whether the stream is still open."""
_PATIENCE_S: Final = 0.5


class Libp2pStream:
    """Implements :class:`echo2swarm.network.base.Stream`.

    Slow readers: the library breaks a stream whose reader takes nothing for five
    seconds. Here a writer waits for room before it writes, so a reader may take
    its time; who wants a limit sets a deadline around ``send``.
    """

    def __init__(self, stream: INetStream, peer: PeerId, max_frame_bytes: int) -> None:
        self._stream = stream
        self._muxed = stream.muxed_stream
        self._connection: BulkYamux = self._muxed.conn
        self._peer = peer
        self._max_frame_bytes = max_frame_bytes
        self._inbox: ReceiveBuffer = self._connection.open_inbox(self._muxed)
        self._length: int | None = None
        """Of the frame whose header was taken, and which has not been received."""
        self._send_lock = trio.Lock()
        self._receive_lock = trio.Lock()
        self._can_send = True
        self._can_receive = True

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven by its key."""
        return self._peer

    @property
    def connection(self) -> BulkYamux:
        """On which it runs."""
        return self._connection

    @property
    def num_arrived_bytes(self) -> int:
        """How much is here of the frame that is being received."""
        return len(self._inbox)

    async def send(self, *parts: Data) -> None:
        """Send one frame."""
        frame = parts[0] if len(parts) == 1 else b"".join(parts)
        async with self._send_lock:
            if not self._can_send:
                raise NetworkError(f"stream to {short(self._peer)} broke")
            # Until the frame is out whole: what follows half a frame is noise.
            self._can_send = False
            header = len(frame).to_bytes(HEADER_BYTES, "big")
            first = DATA_BYTES - HEADER_BYTES
            await self._write(memoryview(b"".join((header, frame[:first]))))
            await self._write(memoryview(frame)[first:])
            self._can_send = True

    async def _write(self, data: memoryview) -> None:
        while data:
            num_bytes = min(await self._room(min(len(data), DATA_BYTES)), len(data), BATCH_BYTES)
            if DATA_BYTES < num_bytes < len(data):
                num_bytes -= num_bytes % DATA_BYTES
            try:
                await self._connection.send_data(self._muxed, data[:num_bytes])
            except Exception as exc:
                raise NetworkError(f"stream to {short(self._peer)} broke") from exc
            data = data[num_bytes:]

    async def _room(self, wanted_bytes: int) -> int:
        """Wait until the reader has room for ``wanted_bytes``, or for less but a while already."""
        give_in_s = trio.current_time() + _PATIENCE_S
        while True:
            if self._muxed.closed or self._muxed.send_closed:
                raise NetworkError(f"stream to {short(self._peer)} broke")
            room_bytes = int(self._muxed.send_window)
            if room_bytes >= wanted_bytes or (room_bytes and trio.current_time() > give_in_s):
                return room_bytes
            with trio.move_on_after(_LOOK_S):
                await self._connection.has_room.park()

    async def receive(self) -> bytes:
        """Return the next frame."""
        async with self._receive_lock:
            await self._give_room(num_unread_bytes=len(self._inbox))
            if self._length is None:
                await self._wait_for(HEADER_BYTES)
                header = self._inbox.take(HEADER_BYTES)
                try:
                    self._length = frame_length(header, max_bytes=self._max_frame_bytes)
                except RemoteProtocolError:
                    self._can_receive = False
                    raise
            await self._wait_for(self._length)
            frame = self._inbox.take(self._length)
            self._length = None
            return frame

    async def receive_view(self) -> memoryview:
        """Return the next frame."""
        return memoryview(await self.receive())

    async def _wait_for(self, num_bytes: int) -> None:
        """Wait for the next bytes without taking them: a cancelled reader loses nothing."""
        events, stream_id = self._connection.stream_events, self._muxed.stream_id
        while True:
            if not self._can_receive:
                raise NetworkError(f"stream from {short(self._peer)} broke")
            if len(self._inbox) >= num_bytes:
                return
            # All that is here belongs to a frame that is longer: it counts as read.
            await self._give_room(num_unread_bytes=0)
            if len(self._inbox) >= num_bytes:
                continue
            if self._muxed.recv_closed or self._muxed.closed or stream_id not in events:
                self._can_receive = False
                is_between = self._length is None and not self._inbox
                where = "between frames" if is_between else "in mid-frame"
                raise NetworkError(f"stream from {short(self._peer)} ended {where}")
            if events[stream_id].is_set():
                events[stream_id] = trio.Event()
            await events[stream_id].wait()

    async def _give_room(self, *, num_unread_bytes: int) -> None:
        # If the connection is gone, whoever waits will see that.
        with suppress(Exception):
            await self._connection.give_room(self._muxed, num_unread_bytes=num_unread_bytes)

    async def finish(self, *, is_done: bool) -> None:
        """Close the stream, or reset it if not ``is_done``. Never raises, takes 2 s at most."""
        self._can_send = self._can_receive = False
        self._connection.close_inbox(self._muxed)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            try:
                if is_done:
                    await self._stream.close()
                # Closing ends only our direction. The peer keeps what has arrived
                # before the reset, and learns that nobody reads any more.
                if not (is_done and self._muxed.recv_closed):
                    await self._stream.reset()
            except Exception:  # noqa: S110 - the connection is gone, and the stream with it
                pass
