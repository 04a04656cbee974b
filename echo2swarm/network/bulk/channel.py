"""Streams for bulk data, each over a TLS connection of its own to the same port.

Specification: ``docs/specs/bulk.md``. Who is at the other end, and the secret that
says so, is agreed on over a stream that has proven it (:mod:`protocols.bulk`).
Whoever can dial the other does. Where neither can, there is no bulk connection, and
the stream has to go over libp2p like any other.
"""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

import structlog
import trio

from echo2swarm.network.addresses import merge_addresses
from echo2swarm.network.admission.connection_seats import ConnectionSeat, ConnectionSeats
from echo2swarm.network.admission.dial_policy import DialPolicy
from echo2swarm.network.admission.proven import IsProven
from echo2swarm.network.bulk import tls
from echo2swarm.network.bulk.dial import DIAL_S, Caller, dial, place_of
from echo2swarm.network.bulk.routes import BulkRoute, Routes
from echo2swarm.network.bulk.socket import BrokenError, Filling, TlsSocket
from echo2swarm.network.bulk.stream import TlsStream
from echo2swarm.network.bulk.tokens import TokenBook
from echo2swarm.network.serving import Service
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.throttle import Throttle
from protocols.bulk import (
    MAX_MESSAGE_BYTES,
    TOKEN_BYTES,
    BulkRefused,
    CallBack,
    Called,
    DialInvitation,
    DialRequest,
    DialTarget,
    Obstacle,
    Reply,
    Request,
)
from protocols.codec import decode, encode
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId, short

HANDSHAKE_S: Final = 5.0
ANSWER_S: Final = 5.0
CALL_BACK_S: Final = 2 * DIAL_S
MAX_STREAMS: Final = 512
"""As many as one protocol has at work and on their way. Of more, one of whoever holds most, by
network, by address and by identity, is closed; peers with accepted work keep some of theirs."""
MAX_STREAMS_PER_PEER: Final = 32
MAX_THREADS: Final = 4
MAX_PORTS: Final = 2
"""Of one host that are dialled for one entrance: a port is open for both kinds of IP at most."""
MAX_CALL_BACKS: Final = 64
MAX_CALL_BACKS_PER_PEER: Final = 4
"""At once. Each holds its place as long as the longest dial takes, whatever came of it."""

Call = Callable[[PeerId, bytes, float], Awaitable[bytes]]
"""Asks a peer over libp2p (peer, request, seconds); returns its reply, or raises NetworkError."""
Where = Callable[[PeerId], Sequence[str]]
"""Returns where a peer has proven its key, the best first."""
HostOf = Callable[[PeerId], str | None]
"""Returns the IP address from which a peer is connected to us."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Serve:
    """Purpose of a token: the peer opens a stream that is served here."""

    protocol: str


@dataclass(frozen=True, slots=True)
class _HandOver:
    """Purpose of a token: somebody here has opened a stream, and waits for the peer's call."""

    to: "trio.MemorySendChannel[TlsSocket]"


class BulkChannel:
    """Opens and serves bulk streams.

    Args:
        call: asks a peer.
        where: knows where peers are.
        host_of: knows from where they are connected.
        policy: decides what is dialled.
        is_proven: names the peers that keep some of their streams when there are too many.
        addresses: our own; empty if nobody can dial us.
        services: what is served here, by protocol; looked up at each stream.
        nursery: runs the handlers of streams for which we dialled.
    """

    def __init__(
        self,
        *,
        call: Call,
        where: Where,
        host_of: HostOf,
        policy: DialPolicy,
        is_proven: IsProven,
        addresses: Sequence[str],
        services: dict[str, Service],
        nursery: trio.Nursery,
    ) -> None:
        self._call = call
        self._where = where
        self._host_of = host_of
        self._policy = policy
        self._calling_back: Counter[PeerId] = Counter()
        self._addresses = merge_addresses(addresses)
        self._services = services
        self._nursery = nursery
        self._certificate = tls.Certificate()
        self._accepting = self._certificate.accepting()
        self._dialling = tls.dialling()
        self._threads = trio.CapacityLimiter(MAX_THREADS)
        self._tickets: TokenBook[_Serve | _HandOver] = TokenBook()
        self._routes = Routes(is_dialable=bool(addresses))
        self._seats = ConnectionSeats(MAX_STREAMS, is_protected=is_proven)
        self._streams: dict[TlsStream, ConnectionSeat] = {}
        self._throttle = Throttle()

    # Opening.

    async def open(self, peer: PeerId, protocol: str, max_frame_bytes: int) -> TlsStream | None:
        """Return a stream to ``peer``, to be finished by the caller; None if there is no way."""
        if self._is_full(peer):
            return None
        for way in self._routes.ways_to(peer, now_s=trio.current_time()):
            try:
                match way:
                    case BulkRoute.DIAL:
                        connection = await self._dial(peer, protocol)
                    case BulkRoute.CALL_BACK:
                        connection = await self._be_called(peer, protocol)
                    case _:
                        assert_never(way)
            except (NetworkError, RemoteProtocolError) as exc:
                # It speaks no bulk, or is gone: what carries the stream instead will tell.
                _log.debug("bulk.unavailable", peer=short(peer), error=str(exc))
                return None
            if isinstance(connection, TlsSocket):
                return self._add(connection, peer, max_frame_bytes)
            if connection is not Obstacle.UNREACHABLE:
                _log.debug("bulk.refused_us", peer=short(peer), why=connection.value)
                return None
            self._routes.failed(peer, way, now_s=trio.current_time())
            _log.debug("bulk.unreachable", peer=short(peer), way=way.name)
        return None

    async def _dial(self, peer: PeerId, protocol: str) -> TlsSocket | Obstacle:
        match await self._ask(peer, DialRequest(protocol), ANSWER_S):
            case DialInvitation(entrance):
                places = merge_addresses(
                    self._where(peer), self._places_at_its_host(peer, entrance)
                )
                return await self._enter(peer, entrance, places) or Obstacle.UNREACHABLE
            case BulkRefused(why):
                return why
            case Called():
                raise RemoteProtocolError("called without being asked to")
            case other:
                assert_never(other)

    async def _be_called(self, peer: PeerId, protocol: str) -> TlsSocket | Obstacle:
        call, caller = trio.open_memory_channel[TlsSocket](1)
        token = secrets.token_bytes(TOKEN_BYTES)
        if not self._tickets.issue(token, peer, _HandOver(call), now_s=trio.current_time()):
            return Obstacle.BUSY
        try:
            request = CallBack(protocol, self._entrance(token))
            match await self._ask(peer, request, CALL_BACK_S):
                case Called():
                    with trio.move_on_after(ANSWER_S):
                        return await caller.receive()
                    return Obstacle.UNREACHABLE
                case BulkRefused(why):
                    return why
                case DialInvitation():
                    raise RemoteProtocolError("offered what was not asked for")
                case other:
                    assert_never(other)
        finally:
            self._tickets.revoke(token)
            with suppress(trio.WouldBlock, trio.EndOfChannel):
                caller.receive_nowait().cut()  # It came too late.
            caller.close()

    async def _ask(self, peer: PeerId, request: Request, within_s: float) -> Reply:
        frame = await self._call(peer, encode(request, max_bytes=MAX_MESSAGE_BYTES), within_s)
        reply: Reply = decode(frame, Reply, max_bytes=MAX_MESSAGE_BYTES)
        return reply

    async def _enter(
        self, peer: PeerId, entrance: DialTarget, places: Sequence[str]
    ) -> TlsSocket | None:
        caller = Caller(
            begin=lambda where: (
                not self._policy.begin(peer, where, told_by=peer, now_s=trio.current_time())
            ),
            reached=partial(self._policy.reached, peer),
            failed=partial(self._policy.failed, peer),
        )
        return await dial(places, entrance, self._dialling, self._threads, caller)

    def _places_at_its_host(self, peer: PeerId, entrance: DialTarget) -> tuple[str, ...]:
        """Return the ports that a peer names, at the host from which it is connected to us.

        Whatever host it names: it has nobody dialled but itself.
        """
        host = self._host_of(peer)
        if host is None:
            return ()
        ports = dict.fromkeys(p.port for p in map(place_of, entrance.addresses) if p is not None)
        family = "ip6" if ":" in host else "ip4"
        places = (f"/{family}/{host}/tcp/{port}" for port in ports)
        return tuple(where for where in places if not self._policy.objection(where))[:MAX_PORTS]

    def _entrance(self, token: bytes) -> DialTarget:
        return DialTarget(self._certificate.sha256, token, self._addresses)

    # Answering.

    async def answer(self, peer: PeerId, request: bytes) -> bytes:
        """Return the reply to a peer that wants a bulk connection."""
        asked: Request = decode(request, Request, max_bytes=MAX_MESSAGE_BYTES)
        return encode(await self._reply(peer, asked), max_bytes=MAX_MESSAGE_BYTES)

    async def _reply(self, peer: PeerId, asked: Request) -> Reply:
        if asked.protocol not in self._services:
            return BulkRefused(Obstacle.UNKNOWN_PROTOCOL)
        if self._is_full(peer):
            return BulkRefused(Obstacle.BUSY)
        match asked:
            case DialRequest(protocol):
                return self._offer(peer, protocol)
            case CallBack(protocol, entrance):
                places = self._places_at_its_host(peer, entrance)
                if not places:
                    return BulkRefused(Obstacle.UNREACHABLE)
                if not self._may_call_back(peer):
                    return BulkRefused(Obstacle.BUSY)
                self._calling_back[peer] += 1
                self._nursery.start_soon(self._call_back, peer, protocol, entrance, places)
                return Called()
            case _:
                assert_never(asked)

    def _may_call_back(self, peer: PeerId) -> bool:
        return (
            self._calling_back[peer] < MAX_CALL_BACKS_PER_PEER
            and self._calling_back.total() < MAX_CALL_BACKS
        )

    async def _call_back(
        self, peer: PeerId, protocol: str, entrance: DialTarget, places: Sequence[str]
    ) -> None:
        """Dial a peer that was told so before: neither the answer nor its time tells what came."""
        connection: TlsSocket | None = None
        began_s = trio.current_time()
        try:
            connection = await self._enter(peer, entrance, places)
            if connection is None:
                # How soon there is room again must not tell what is at the port, either.
                await trio.sleep_until(began_s + DIAL_S)
        finally:
            self._calling_back[peer] -= 1
            self._calling_back += Counter()  # drops those at zero
        if connection is not None:
            await self._serve(connection, peer, protocol)

    def _offer(self, peer: PeerId, protocol: str) -> DialInvitation | BulkRefused:
        if not self._addresses:
            return BulkRefused(Obstacle.UNREACHABLE)
        token = secrets.token_bytes(TOKEN_BYTES)
        if not self._tickets.issue(token, peer, _Serve(protocol), now_s=trio.current_time()):
            return BulkRefused(Obstacle.BUSY)
        return DialInvitation(self._entrance(token))

    def _is_full(self, peer: PeerId) -> bool:
        num_open = sum(seat.peer == peer for seat in self._streams.values())
        return num_open + self._tickets.num_of(peer) >= MAX_STREAMS_PER_PEER

    # Accepting.

    async def admit(self, raw: trio.SocketStream) -> Callable[[], Awaitable[None]] | None:
        """Let in who shows a token; returns what is left to do for that connection, if anything.

        Takes a few seconds at most, and raises nothing, whatever comes in.
        """
        connection: TlsSocket | None = None
        why = "silent"
        is_in = False
        try:
            connection = TlsSocket(raw, self._accepting, is_accepting=True, threads=self._threads)
            with trio.move_on_after(HANDSHAKE_S):
                await connection.shake_hands()
                if not tls.is_ours(connection.ssl):
                    raise BrokenError("another protocol")
                shown = Filling(TOKEN_BYTES)
                await connection.fill(shown)
                ticket = self._tickets.redeem(bytes(shown.view), now_s=trio.current_time())
                if ticket is None:
                    raise BrokenError("no valid token")
                match ticket.purpose:
                    case _Serve(protocol):
                        is_in = True
                        return partial(self._serve, connection, ticket.peer, protocol)
                    case _HandOver(to):
                        to.send_nowait(connection)
                        is_in = True
                        return None
                    case _:
                        assert_never(ticket.purpose)
        except BrokenError as exc:
            why = str(exc)
        except (trio.BrokenResourceError, trio.WouldBlock):
            why = "nobody waits for it any more"
        finally:
            if connection is not None and not is_in:
                connection.cut()
        self._warn(why)
        return None

    async def _serve(self, connection: TlsSocket, peer: PeerId, protocol: str) -> None:
        service = self._services[protocol]
        stream = self._add(connection, peer, service.limits.max_frame_bytes)
        is_done = False
        try:
            is_done = await service.run(stream)
        finally:
            await stream.finish(is_done=is_done)

    def _add(self, connection: TlsSocket, peer: PeerId, max_frame_bytes: int) -> TlsStream:
        stream = TlsStream(connection, peer, max_frame_bytes, on_closed=lambda: self._leave(stream))
        seat = ConnectionSeat(connection.address, is_dialled=False, peer=peer)
        self._streams[stream] = seat
        if (victim := self._seats.take(seat)) is not None:
            self._warn(f"closed a stream: {victim.why_removed}")
            next(each for each, its in self._streams.items() if its is victim).reset()
        return stream

    def _leave(self, stream: TlsStream) -> None:
        if (seat := self._streams.pop(stream, None)) is not None:
            self._seats.leave(seat)

    def _warn(self, why: str) -> None:
        num_held_back = self._throttle.admit(trio.current_time())
        if num_held_back is not None:
            _log.warning("bulk.rejected", error=why, num_not_shown=num_held_back)

    # The end.

    def disconnect(self, peer: PeerId) -> None:
        """Break all bulk streams to ``peer``."""
        for stream in [s for s, seat in self._streams.items() if seat.peer == peer]:
            stream.reset()

    def cut(self) -> None:
        """Break all bulk streams."""
        for stream in tuple(self._streams):
            stream.reset()
