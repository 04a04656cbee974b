"""Yamux as libp2p offers it, hard to crash, and cheap per byte.

The library takes a dozen locks and log lines for each frame, and sends a window
update for each read. Here the two kinds of frames that make up all bulk traffic,
data and window updates without flags, are taken and written in a few lines of
our own. Everything else, streams that open, end or are reset, pings, and
whatever looks odd, is left to the library, which also keeps all the state.
"""

import struct
from collections.abc import Callable
from typing import Final

import structlog
import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import (
    DEFAULT_WINDOW_SIZE,
    FLAG_SYN,
    HEADER_SIZE,
    TYPE_DATA,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX

from echo2swarm.network.libp2p_inbox import Inbox
from echo2swarm.network.libp2p_noise import FrameSession
from echo2swarm.network.libp2p_socket import OwnedStream

DATA_BYTES: Final = 65_507
"""A frame with this much is exactly one Noise message; with one byte more it is two."""
BODY_TIMEOUT_S: Final = 60.0
"""The rest of a frame whose start is here comes within this, or never."""
_HEADER: Final = struct.Struct(YAMUX_HEADER_FORMAT)

_log = structlog.get_logger()


class FlowControlError(Exception):
    """A peer sent more than it was given room for: its connection ends."""


class BulkYamux(Yamux):  # type: ignore[misc]  # untyped library
    """Yamux whose failure on one connection ends that connection, not the host."""

    secured_conn: FrameSession

    def __init__(self, secured_conn: FrameSession, peer_id: ID) -> None:
        super().__init__(secured_conn, peer_id)
        self.has_room = trio.lowlevel.ParkingLot()
        """Who waits for a peer to take more is woken here, to look again."""
        self._inboxes: dict[int, Inbox] = {}
        secured_conn.skim = self._skim

    def open_inbox(self, stream: YamuxStream) -> Inbox:
        """Return where all that a stream receives is from now on, until :meth:`close_inbox`.

        It lasts longer than the stream, so that what has come before an end can be read after it.
        """
        buffer = self.stream_buffers.get(stream.stream_id, bytearray())
        return self._inboxes.setdefault(stream.stream_id, Inbox(buffer))

    def close_inbox(self, stream: YamuxStream) -> None:
        """Forget what a stream has received."""
        if (inbox := self._inboxes.pop(stream.stream_id, None)) is not None:
            inbox.clear()

    @property
    def num_unread_bytes(self) -> int:
        """How much has arrived on all streams that nobody has read."""
        others = self.stream_buffers.keys() - self._inboxes.keys()
        return (
            self.secured_conn.num_held_bytes
            + sum(map(len, self._inboxes.values()))
            + sum(len(self.stream_buffers[stream_id]) for stream_id in others)
        )

    async def start(self) -> None:
        """Run the connection until it ends."""
        try:
            await super().start()
        except Exception as exc:
            _log.debug("connection.failed", peer=str(self.peer_id)[-8:], error=repr(exc)[:200])
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self.close()
            # Who waits for the start is to find it closed, not to wait for ever.
            self.event_started.set()

    def _skim(self, data: bytes, start: int) -> int:
        """Take the whole, plain frames that ``data`` has from ``start`` on.

        Raises:
            FlowControlError: the peer sends more than it was given room for.
        """
        while len(data) - start >= HEADER_SIZE:
            version, kind, flags, stream_id, length = _HEADER.unpack_from(data, start)
            stream = self.streams.get(stream_id)
            if kind == TYPE_DATA:
                self._check_window(stream_id, length, is_new=bool(flags & FLAG_SYN))
            if stream is None or flags or version:
                break
            body = start + HEADER_SIZE
            if kind == TYPE_DATA:
                if body + length > len(data):
                    break
                stream.recv_window -= length
                if (inbox := self._inboxes.get(stream_id)) is not None:
                    inbox.add(data, body, body + length)
                else:
                    self.stream_buffers[stream_id] += data[body : body + length]
                self.stream_events[stream_id].set()
                start = body + length
            elif kind == TYPE_WINDOW_UPDATE:
                stream.send_window += length
                self.has_room.unpark_all()
                start = body
            else:
                break
        return start

    def _check_window(self, stream_id: int, length: int, *, is_new: bool) -> None:
        """Check an announced frame against the room that its stream has."""
        stream = self.streams.get(stream_id)
        if stream is None and not is_new:
            return  # On its way when we ended the stream: it is read and dropped.
        room = DEFAULT_WINDOW_SIZE if stream is None else stream.recv_window
        if length > room:
            error = f"sent {length} bytes where there was room for {room}"
            _log.warning("peer.flooding", peer=str(self.peer_id)[-8:], error=error)
            self.cut()
            raise FlowControlError(error)

    async def _read_data_body(self, length: int) -> bytes:
        """Read the body of a data frame, whatever it looks like."""
        with trio.fail_after(BODY_TIMEOUT_S):
            return await self.secured_conn.read_body(length)

    def cut(self) -> None:
        """Close the connection of a flood at once, with all that it holds."""
        stream: OwnedStream = self.secured_conn.conn.read_writer.read_write_closer.stream
        stream.cut_flood()

    async def send_data(self, stream: YamuxStream, data: memoryview) -> None:
        """Send ``data``, which is no more than the stream's ``send_window``."""
        async with self._write_lock:
            if stream.send_closed or stream.closed or self.event_shutting_down.is_set():
                raise MuxedStreamError("stream is closed for sending")
            stream.send_window -= len(data)
            pieces = [data[i : i + DATA_BYTES] for i in range(0, len(data), DATA_BYTES)]
            await self.secured_conn.write_messages(
                _HEADER.pack(0, TYPE_DATA, 0, stream.stream_id, len(piece)) + piece
                for piece in pieces
            )

    async def give_room(self, stream: YamuxStream, *, num_unread_bytes: int) -> None:
        """Let the peer send more, once half of its window is used up and read."""
        if stream.recv_closed or stream.closed:
            return
        used_bytes = stream.target_recv_window - stream.recv_window - num_unread_bytes
        if 2 * used_bytes < stream.target_recv_window:
            return
        with trio.CancelScope(shield=True):
            await stream.send_window_update(
                stream._grow_to_delta(num_unread_bytes)
                + stream._apply_autotune_epoch(num_unread_bytes)
            )


class BulkMuxer(MuxerMultistream):  # type: ignore[misc]  # untyped library
    """Agrees on yamux, and then uses ours: the library's makes its own whatever it was given."""

    def __init__(self, on_received: Callable[[int], None]) -> None:
        """Make one.

        Args:
            on_received: told how many bytes have arrived on any connection.
        """
        super().__init__({TProtocol(YAMUX): BulkYamux})
        self._on_received = on_received

    async def new_conn(self, conn: FrameSession, peer_id: ID) -> BulkYamux:
        """Agree on a muxer over ``conn``."""
        make = await self.select_transport(conn)
        muxed: BulkYamux = make(conn, peer_id)
        conn.on_received = self._on_received
        self._annotate_connection(muxed, conn, TProtocol(YAMUX))
        return muxed
