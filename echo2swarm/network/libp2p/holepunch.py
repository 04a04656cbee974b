"""Connections between peers of which neither can be dialled, with the help of a third.

Specification: ``docs/specs/holepunch.md``; why not the library's relay and hole
punching: ``docs/adr/0007-nat.md``. A connection made like this is a libp2p
connection as any other, straight from router to router.
"""

from collections.abc import Collection, Sequence
from typing import Final
from weakref import WeakSet

import structlog
import trio
from libp2p.abc import IHost, INetConn
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from echo2swarm.network.admission.dial_policy import DialPolicy
from echo2swarm.network.base import ServeLimits, Stream
from echo2swarm.network.libp2p.endpoints import (
    Negotiate,
    connection_to,
    ends_of,
    ends_of_socket,
    muxed_of,
    open_connections,
    stream_on,
)
from echo2swarm.network.libp2p.holepunch_tcp import Puncher
from echo2swarm.network.libp2p.socket import OwnedStream
from echo2swarm.network.libp2p.yamux import BulkYamux
from echo2swarm.network.serving import leaves
from echo2swarm.system.errors import NetworkError
from protocols.codec import decode, encode
from protocols.errors import RemoteProtocolError
from protocols.holepunch import (
    ASK_PROTOCOL_ID,
    MAX_BYTES,
    MIN_PORT,
    AskReply,
    PunchAccept,
    PunchDeclined,
    PunchFault,
    PunchGo,
    PunchInvite,
    PunchRequest,
    TcpEndpoint,
    parse_place,
)
from protocols.ids import PeerId, public_key_of, short

PUNCH_S: Final = 6.0
"""For both to get through, once they were told to."""
UPGRADE_S: Final = 4.0
"""For a connection that came about to show whose it is."""
HOPELESS_S: Final = 60.0
"""So long a peer whom we could not meet is not asked for again."""
RETRY_S: Final = (0.2, 0.3)
"""After a refusal: of who asked, and of who was asked."""
LOOK_S: Final = 0.1
MAX_MEETINGS: Final = 8
"""Invitations that are followed at once."""
MAX_CANDIDATES: Final = 8
"""Connections of one meeting that may show at once whose they are."""
INVITE_LIMITS: Final = ServeLimits(
    max_frame_bytes=MAX_BYTES, max_streams=16, max_streams_per_peer=8, timeout_s=15.0
)

_log = structlog.get_logger()


class _NoMeetingError(NetworkError):
    """A meeting did not come about."""

    def __init__(self, fault: PunchFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class HolePunching:
    """Asks for meetings, and follows invitations to them.

    Args:
        host: our host.
        peer: our own peer id.
        go_betweens: whom we ask, and by whose word we connect to a place.
        negotiate: opens streams.
        nursery: where listeners run for the time of a meeting.
        policy: decides to which places we connect.
    """

    def __init__(
        self,
        host: IHost,
        peer: PeerId,
        *,
        go_betweens: Collection[PeerId],
        negotiate: Negotiate,
        nursery: trio.Nursery,
        policy: DialPolicy,
    ) -> None:
        self._host = host
        self._swarm = host.get_network()
        self._peer = peer
        self._go_betweens = tuple(dict.fromkeys(go_betweens))
        self._negotiate = negotiate
        self._policy = policy
        self._puncher = Puncher(nursery)
        self._asking: set[PeerId] = set()
        self._answering: set[PeerId] = set()
        self._hopeless: dict[PeerId, float] = {}
        self._met: WeakSet[BulkYamux] = WeakSet()

    def is_met(self, peer: PeerId) -> bool:
        """Return whether we are connected to ``peer``, and by meetings only."""
        connections = open_connections(self._host, peer)
        return bool(connections) and all(c.muxed_conn in self._met for c in connections)

    # The caller.

    def may_meet(self, peer: PeerId) -> bool:
        """Return whether it is worth a try to :meth:`meet` a peer."""
        now_s = trio.current_time()
        self._hopeless = {p: until_s for p, until_s in self._hopeless.items() if until_s > now_s}
        return (
            peer not in self._hopeless
            and peer not in self._go_betweens
            and any(connection_to(self._host, each, is_dialled=True) for each in self._go_betweens)
        )

    async def meet(self, peer: PeerId, *, timeout_s: float) -> INetConn:
        """Return a new connection to ``peer``, made by both of us at the same time.

        Raises:
            NetworkError: no go-between knows it, it does not want to, or the routers
                don't let us.
        """
        failure: NetworkError = NetworkError("no go-between is connected")
        deadline_s = trio.current_time() + timeout_s
        for go_between in self._go_betweens:
            connection = connection_to(self._host, go_between, is_dialled=True)
            if connection is None:
                continue
            try:
                with trio.fail_at(deadline_s):
                    return await self._meet(peer, go_between, connection)
            except trio.TooSlowError:
                self._hopeless[peer] = trio.current_time() + HOPELESS_S
                failure = NetworkError(f"no way through the routers within {timeout_s:.1f} s")
                break
            except _NoMeetingError as exc:
                failure = exc
                if exc.fault is PunchFault.UNABLE:
                    self._hopeless[peer] = trio.current_time() + HOPELESS_S
                if exc.fault is not PunchFault.NOT_HERE:
                    break
            except NetworkError as exc:
                failure = exc
            except RemoteProtocolError as exc:
                failure = NetworkError(f"{short(go_between)} talks nonsense: {exc}")
        raise failure

    async def _meet(self, peer: PeerId, go_between: PeerId, connection: INetConn) -> INetConn:
        if peer in self._answering:
            return await self._wait_for(peer)
        self._asking.add(peer)
        try:
            local, remote = await self._ask(peer, go_between, connection)
            try:
                async with self._puncher.connections(local, remote, retry_s=RETRY_S[0]) as sockets:
                    return await self._first_of(sockets, peer)
            except OSError as exc:
                raise NetworkError(f"can't use port {local.port} again: {exc.strerror}") from exc
        except _NoMeetingError as exc:
            if exc.fault is PunchFault.CROSSED:
                return await self._wait_for(peer)
            raise
        finally:
            self._asking.discard(peer)

    async def _ask(
        self, peer: PeerId, go_between: PeerId, connection: INetConn
    ) -> tuple[TcpEndpoint, tuple[TcpEndpoint, ...]]:
        local, _ = ends_of(connection.muxed_conn)
        if local.port < MIN_PORT:
            raise _NoMeetingError(PunchFault.UNABLE, f"port {local.port} is not for meetings")
        async with stream_on(connection, go_between, ASK_PROTOCOL_ID, self._negotiate) as stream:
            await stream.send(encode(PunchRequest(peer, local.port), max_bytes=MAX_BYTES))
            reply: AskReply = decode(await stream.receive(), AskReply, max_bytes=MAX_BYTES)
        if isinstance(reply, PunchDeclined):
            raise _NoMeetingError(
                reply.fault, f"{short(go_between)} can't bring us together: {reply.fault.value}"
            )
        return local, self._admitted(reply.places, peer)

    def _admitted(self, places: Sequence[str], peer: PeerId) -> tuple[TcpEndpoint, ...]:
        """Return to which of the places that a go-between tells we connect.

        Raises:
            MalformedMessageError: one of them is none.
            NetworkError: to none of them.
        """
        admitted: list[TcpEndpoint] = []
        why = ""
        for place in dict.fromkeys(map(parse_place, places)):
            refusal = self._policy.begin(peer, str(place), told_by=peer, now_s=trio.current_time())
            why = why or refusal
            if not refusal:
                admitted.append(place)
        if not admitted:
            raise NetworkError(f"no place to meet {short(peer)} at: {why}")
        return tuple(admitted)

    async def _first_of(
        self, sockets: trio.MemoryReceiveChannel[trio.SocketStream], peer: PeerId
    ) -> INetConn:
        """Return the first connection at whose other end there is ``peer``."""
        target = ID.from_string(peer)
        async for stream in sockets:
            connection = None
            try:
                with trio.move_on_after(UPGRADE_S):
                    raw = RawConnection(OwnedStream(stream), initiator=True)
                    connection = await self._swarm.upgrade_outbound_raw_conn(raw, target)
                    self._met.add(connection.muxed_conn)
                    self._policy.reached(peer, str(ends_of_socket(stream.socket)[1]))
                    _log.info("peer.met", peer=peer)
                    return connection
            except Exception as exc:
                _log.debug("meeting.failed", peer=short(peer), error=repr(leaves(exc)[0])[:200])
            finally:
                if connection is None:
                    await trio.aclose_forcefully(stream)
        raise NetworkError("no way through the routers")

    async def _wait_for(self, peer: PeerId) -> INetConn:
        """Return the connection that comes of the other's request."""
        while True:
            if connections := open_connections(self._host, peer):
                return connections[0]
            await trio.sleep(LOOK_S)

    # The callee.

    async def follow_invitation(self, stream: Stream) -> None:
        """Answer a go-between that somebody has asked for us, and connect to who asked."""
        invite: PunchInvite = decode(await stream.receive(), PunchInvite, max_bytes=MAX_BYTES)
        peer = PeerId(invite.peer_id)
        public_key_of(peer)
        connection = muxed_of(stream)
        local, _ = ends_of(connection)
        fault = self._objection(stream.peer, peer)
        if fault is None and (local.port < MIN_PORT or not connection.is_initiator):
            fault = PunchFault.UNABLE
        if fault is not None:
            await stream.send(encode(PunchDeclined(fault), max_bytes=MAX_BYTES))
            return
        self._answering.add(peer)
        try:
            await stream.send(encode(PunchAccept(local.port), max_bytes=MAX_BYTES))
            go: PunchGo = decode(await stream.receive(), PunchGo, max_bytes=MAX_BYTES)
            with trio.move_on_after(PUNCH_S):
                remote = self._admitted(go.places, peer)
                async with self._puncher.connections(local, remote, retry_s=RETRY_S[1]) as sockets:
                    await self._first_from(sockets, peer)
        except OSError as exc:
            _log.debug("meeting.impossible", port=local.port, error=str(exc))
        finally:
            self._answering.discard(peer)

    def _objection(self, go_between: PeerId, peer: PeerId) -> PunchFault | None:
        if go_between not in self._go_betweens:
            return PunchFault.UNABLE
        if peer in self._answering or len(self._answering) >= MAX_MEETINGS:
            return PunchFault.BUSY
        if peer in self._asking and self._peer < peer:
            return PunchFault.CROSSED
        return None

    async def _first_from(
        self, sockets: trio.MemoryReceiveChannel[trio.SocketStream], peer: PeerId
    ) -> None:
        """Let in ``peer``, on whichever connection it shows itself."""
        async with trio.open_nursery() as nursery:

            async def let_in(stream: trio.SocketStream) -> None:
                if await self._let_in(stream, peer):
                    _log.info("peer.met", peer=peer)
                    nursery.cancel_scope.cancel()

            async for stream in sockets:
                if len(nursery.child_tasks) < MAX_CANDIDATES:
                    nursery.start_soon(let_in, stream)
                else:
                    await trio.aclose_forcefully(stream)

    async def _let_in(self, stream: trio.SocketStream, peer: PeerId) -> bool:
        is_peer = False
        try:
            with trio.move_on_after(UPGRADE_S):
                _, remote = ends_of_socket(stream.socket)
                raw = RawConnection(OwnedStream(stream), initiator=False)
                muxed = await self._swarm.upgrade_inbound_raw_conn(raw, Multiaddr(str(remote)))
                is_peer = str(muxed.peer_id) == peer
                if is_peer:
                    self._met.add(muxed)
                    self._policy.reached(peer, str(remote))
                else:
                    await muxed.close()
        except Exception as exc:
            _log.debug("meeting.failed", peer=short(peer), error=repr(leaves(exc)[0])[:200])
        finally:
            if not is_peer:
                await trio.aclose_forcefully(stream)
        return is_peer
