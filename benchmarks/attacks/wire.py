"""A libp2p connection of which every byte is up to the caller: TCP, Noise and yamux by hand.

The project's own network would not send what an attacker sends, and a host with a DHT and gossip
for each of sixty identities would cost more than the attacks. What peers of ours open on such a
connection (identify, DHT, gossip) is refused; pings are answered, or they would hang up.
"""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX

from echo2swarm.network.libp2p.noise import FrameSession, security_options
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from protocols.ids import PeerId

MULTISTREAM: Final = "/multistream/1.0.0"
HANDSHAKE_S: Final = 20.0
MESSAGE_BYTES: Final = 65_000
"""Of one yamux frame and its header: a Noise message holds no more than 65,519."""
_HEADER: Final = struct.Struct("!BBHII")
_LENGTH: Final = struct.Struct("!I")
_DATA, _WINDOW, _PING, _GO_AWAY = 0, 1, 2, 3
_SYN, _ACK, _FIN, _RST = 1, 2, 4, 8
_WIDE: Final = 64 * 1024 * 1024
"""Window that is granted for each stream at its start, so that replies are never held up."""
_BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(frozen=True, slots=True)
class Target:
    """Who is attacked, and where it listens."""

    peer: PeerId
    host: str
    port: int


def new_identity() -> Identity:
    """Return an identity that nobody has seen before."""
    return Identity.of(Ed25519PrivateKey.generate())


def line(text: str) -> bytes:
    """Return one line of multistream-select."""
    data = text.encode() + b"\n"
    return varint(len(data)) + data


def frame(body: bytes) -> bytes:
    """Return a frame of this project's protocols."""
    return _LENGTH.pack(len(body)) + body


async def open_tcp(target: Target, source: str | None) -> trio.SocketStream:
    """Connect to where ``target`` listens, from the address ``source`` of this machine."""
    sock = trio.socket.socket()
    try:
        if source is not None:
            await sock.bind((source, 0))
        await sock.connect((target.host, target.port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


class Wire:
    """An open connection; made by :func:`open_wire`."""

    def __init__(self, session: FrameSession) -> None:
        self._session = session
        self._lock = trio.Lock()
        self._next_id = 1
        self._streams: dict[int, WireStream] = {}
        self._closed = trio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        """Return when the connection has ended."""
        await self._closed.wait()

    async def write_frame(
        self, kind: int, flags: int, stream_id: int, length: int, body: bytes = b""
    ) -> None:
        """Send one yamux frame."""
        data = _HEADER.pack(0, kind, flags, stream_id, length) + body
        try:
            async with self._lock:
                await self._session.conn.write_msgs([data])
        except Exception as exc:
            self._closed.set()
            raise NetworkError(f"the connection broke: {exc!r}") from exc

    async def open_stream(self, protocol: str | None = None, first: bytes = b"") -> "WireStream":
        """Open a stream; with a ``protocol``, negotiate it and send ``first`` in one go."""
        stream = WireStream(self, self._next_id, num_lines=2 if protocol else 0)
        self._next_id += 2
        self._streams[stream.id] = stream
        await self.write_frame(_WINDOW, _SYN, stream.id, _WIDE)
        if protocol is not None:
            await stream.send(line(MULTISTREAM) + line(protocol) + first)
        return stream

    async def call(
        self, protocol: str, request: bytes, *, within_s: float, max_reply_bytes: int = 1 << 24
    ) -> bytes:
        """Send one frame of a protocol and return the one that is answered.

        Raises:
            NetworkError: the stream or the connection ended, or nothing came in time.
        """
        try:
            with trio.fail_after(within_s):
                stream = await self.open_stream(protocol, frame(request))
                try:
                    return await stream.receive_frame(max_reply_bytes)
                finally:
                    stream.forget()
        except trio.TooSlowError:
            raise NetworkError(f"no answer within {within_s:g} s") from None

    def forget(self, stream_id: int) -> None:
        """Take no more of a stream."""
        self._streams.pop(stream_id, None)

    async def read(self) -> None:
        """Take in what comes, until the connection ends."""
        try:
            while True:
                header = await self._session.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    return
                await self._take(*_HEADER.unpack(header)[1:])
        except trio.Cancelled:
            raise
        except Exception:  # noqa: S110 - however it ends, it has ended
            pass
        finally:
            self._closed.set()
            for stream in list(self._streams.values()):
                stream.end()

    async def _take(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        body = b""
        if kind == _DATA and length:
            body = await self._session.read(length)
        if kind == _PING and flags & _SYN:
            await self.write_frame(_PING, _ACK, 0, length)
            return
        if kind == _GO_AWAY:
            self._closed.set()
            return
        if kind not in (_DATA, _WINDOW):
            return
        if flags & _SYN and not stream_id % 2:
            await self.write_frame(_WINDOW, _RST, stream_id, 0)
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.take(body)
        if flags & (_FIN | _RST):
            stream.end()


class WireStream:
    """One stream of a :class:`Wire`."""

    def __init__(self, wire: Wire, stream_id: int, *, num_lines: int) -> None:
        self.id = stream_id
        self.has_ended = False
        self._wire = wire
        self._num_lines = num_lines
        self._received = bytearray()
        self._changed = trio.Event()

    async def send(self, data: bytes) -> None:
        """Send bytes, whatever window the other side has granted."""
        for start in range(0, len(data), MESSAGE_BYTES):
            part = data[start : start + MESSAGE_BYTES]
            await self._wire.write_frame(_DATA, 0, self.id, len(part), part)

    async def receive_frame(self, max_bytes: int) -> bytes:
        """Return the next frame."""
        head = await self._exactly(_LENGTH.size)
        (length,) = _LENGTH.unpack(head)
        if length > max_bytes:
            raise NetworkError(f"a frame of {length} bytes, limit {max_bytes}")
        return await self._exactly(length)

    async def wait_ended(self) -> None:
        """Return when the other side has ended it, or the connection has."""
        while not self.has_ended:
            await self._changed.wait()

    def forget(self) -> None:
        """Take no more of it."""
        self._wire.forget(self.id)

    def take(self, data: bytes) -> None:
        """Take in bytes."""
        self._received += data
        self._notify()

    def end(self) -> None:
        """Nothing more will come."""
        self.has_ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _exactly(self, num_bytes: int) -> bytes:
        while self._num_lines or len(self._received) < num_bytes:
            if self._num_lines and self._drop_line():
                self._num_lines -= 1
                continue
            if self.has_ended:
                raise NetworkError("the stream ended")
            await self._changed.wait()
        taken = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return taken

    def _drop_line(self) -> bool:
        """Take a whole line of multistream-select away; returns whether there was one."""
        if not self._received or len(self._received) <= self._received[0]:
            return False
        text = self._received[1 : 1 + self._received[0]]
        if text == b"na\n":
            self.has_ended = True
        del self._received[: 1 + self._received[0]]
        return True


@asynccontextmanager
async def open_wire(
    target: Target, identity: Identity, *, source: str | None = None
) -> AsyncIterator[Wire]:
    """Connect to ``target`` as ``identity`` and take in what it sends.

    Raises:
        NetworkError: no connection, or no handshake, in time.
    """
    stream: trio.SocketStream | None = None
    try:
        try:
            with trio.fail_after(HANDSHAKE_S):
                stream = await open_tcp(target, source)
                session = await _secure(stream, target.peer, identity)
        except trio.TooSlowError:
            raise NetworkError(f"no handshake within {HANDSHAKE_S:g} s") from None
        except Exception as exc:
            raise NetworkError(f"no connection: {exc!r}") from exc
        wire = Wire(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.read)
            yield wire
            nursery.cancel_scope.cancel()
    finally:
        if stream is not None:
            with suppress(*_BROKEN), trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)


async def _secure(stream: trio.SocketStream, peer: PeerId, identity: Identity) -> FrameSession:
    raw = RawConnection(TrioTCPStream(stream), True)
    await MultiselectClient().select_one_of([NOISE], MultiselectCommunicator(raw))
    noise = security_options(create_new_key_pair(identity.key.private_bytes_raw()))[NOISE]
    session = await noise.secure_outbound(raw, ID.from_string(peer))
    await MultiselectClient().select_one_of([YAMUX], MultiselectCommunicator(session))
    return session


def varint(number: int) -> bytes:
    """Return a number as multistream and protobuf write lengths."""
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])
