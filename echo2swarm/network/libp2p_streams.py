"""Frames over one yamux stream: cancel-safe reads, flow control, an orderly end."""

from typing import Final

import trio
from libp2p.abc import INetStream

from echo2swarm.errors import NetworkError
from protocols.errors import RemoteProtocolError
from protocols.framing import HEADER_BYTES, frame_length
from protocols.ids import PeerId, short

WRITE_BYTES: Final = 65_507
"""One yamux frame of this size is exactly one Noise message; one byte more makes two."""
READ_BYTES: Final = 1 << 20
CLOSE_S: Final = 2.0
_POLL_S: Final = (0.005, 0.05)
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
        self._peer = peer
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._send_lock = trio.Lock()
        self._receive_lock = trio.Lock()
        self._can_send = True
        self._can_receive = True

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven by its key."""
        return self._peer

    async def send(self, frame: bytes) -> None:
        """Send one frame."""
        async with self._send_lock:
            if not self._can_send:
                raise NetworkError(f"stream to {short(self._peer)} broke")
            # Until the frame is out whole: what follows half a frame is noise.
            self._can_send = False
            header = len(frame).to_bytes(HEADER_BYTES, "big")
            first = WRITE_BYTES - HEADER_BYTES
            await self._write(header + frame[:first])
            rest = memoryview(frame)[first:]
            while rest:
                await self._write(bytes(rest[:WRITE_BYTES]))
                rest = rest[WRITE_BYTES:]
            self._can_send = True

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            room_bytes = await self._room(len(view))
            try:
                await self._stream.write(bytes(view[:room_bytes]))
            except Exception as exc:
                raise NetworkError(f"stream to {short(self._peer)} broke") from exc
            view = view[room_bytes:]

    async def _room(self, wanted_bytes: int) -> int:
        """Wait until the reader has room for ``wanted_bytes``, or for less but a while already."""
        give_in_s = trio.current_time() + _PATIENCE_S
        delay_s, longest_s = _POLL_S
        while True:
            if self._muxed.closed or self._muxed.send_closed:
                raise NetworkError(f"stream to {short(self._peer)} broke")
            room_bytes = min(self._muxed.send_window, wanted_bytes)
            if room_bytes == wanted_bytes or (room_bytes and trio.current_time() > give_in_s):
                return int(room_bytes)
            await trio.sleep(delay_s)
            delay_s = min(2 * delay_s, longest_s)

    async def receive(self) -> bytes:
        """Return the next frame."""
        async with self._receive_lock:
            await self._fill(HEADER_BYTES)
            header = bytes(self._buffer[:HEADER_BYTES])
            try:
                length = frame_length(header, max_bytes=self._max_frame_bytes)
            except RemoteProtocolError:
                self._can_receive = False
                raise
            end = HEADER_BYTES + length
            await self._fill(end)
            with memoryview(self._buffer) as view:
                frame = bytes(view[HEADER_BYTES:end])
            del self._buffer[:end]
            return frame

    async def _fill(self, num_bytes: int) -> None:
        """Wait for the next bytes without taking them: a cancelled reader loses nothing."""
        while True:
            if not self._can_receive:
                raise NetworkError(f"stream from {short(self._peer)} broke")
            if len(self._buffer) >= num_bytes:
                return
            try:
                self._buffer += await self._read()
            except Exception as exc:
                self._can_receive = False
                where = "in mid-frame" if self._buffer else "between frames"
                raise NetworkError(f"stream from {short(self._peer)} ended {where}") from exc

    async def _read(self) -> bytes:
        connection = self._muxed.conn
        data = await connection.read_stream(self._muxed.stream_id, READ_BYTES)
        if not data:
            raise EOFError
        # The library's own read may be cancelled here, with the data in its hand.
        with trio.CancelScope(shield=True):
            await self._muxed._auto_tune_and_send_window_update(bytes_read=len(data))
        return bytes(data)

    async def finish(self, *, is_done: bool) -> None:
        """Close the stream, or reset it if not ``is_done``. Never raises, takes 2 s at most."""
        self._can_send = self._can_receive = False
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
