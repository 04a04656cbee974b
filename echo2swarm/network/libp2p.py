"""The network port over libp2p: TCP, Noise, yamux, Kademlia, GossipSub.

``docs/adr/0002-network-adapters.md`` says what of the library is used, what is
worked around, and why. The library is imported here and in the modules named
``libp2p_*`` only.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final

import structlog
import trio
from libp2p.abc import IHost, INetConn, INetStream
from libp2p.custom_types import TProtocol
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.tools.anyio_service import background_trio_service

from echo2swarm.errors import NetworkError
from echo2swarm.identity import Identity
from echo2swarm.network import libp2p_tcp
from echo2swarm.network.addresses import group_by_peer, join_address
from echo2swarm.network.base import (
    MAX_GOSSIP_BYTES,
    Ends,
    Handler,
    IsProven,
    Network,
    PeerInfo,
    ServeLimits,
    Stream,
    Validator,
)
from echo2swarm.network.bulk import ANSWER_S, Bulk
from echo2swarm.network.bulk_stream import TlsStream
from echo2swarm.network.connection_seats import ConnectionSeats
from echo2swarm.network.dial_policy import DialPolicy
from echo2swarm.network.libp2p_connections import CLOSE_S, OPEN_S, Connections
from echo2swarm.network.libp2p_dht import Dht
from echo2swarm.network.libp2p_ends import ends_of, open_connections
from echo2swarm.network.libp2p_gate import Gate
from echo2swarm.network.libp2p_go_between import LIMITS as ASK_LIMITS
from echo2swarm.network.libp2p_go_between import GoBetween
from echo2swarm.network.libp2p_gossip import Gossip
from echo2swarm.network.libp2p_host import (
    concrete_addresses,
    make_host,
)
from echo2swarm.network.libp2p_log import quiet
from echo2swarm.network.libp2p_meeting import INVITE_LIMITS, Meetings
from echo2swarm.network.libp2p_streams import Libp2pStream
from echo2swarm.network.rpc import call, serve_calls
from echo2swarm.network.serving import Service, Subscription, leaves, nobody
from echo2swarm.network.unread import Arrivals
from protocols.bulk import MAX_MESSAGE_BYTES
from protocols.bulk import PROTOCOL_ID as BULK_PROTOCOL_ID
from protocols.ids import PeerId, short
from protocols.meeting import ASK_PROTOCOL_ID, INVITE_PROTOCOL_ID

MAX_CONNECTIONS: Final = 512
MAINTENANCE_S: Final = 1.0
MAX_CALLS_PER_PEER: Final = 16
SHUTDOWN_S: Final = 10.0
"""Longest time that closing takes; it is cut short then."""

_log = structlog.get_logger()


@asynccontextmanager
async def open_network(
    identity: Identity,
    listen: Sequence[str],
    *,
    advertise: Sequence[str] = (),
    ticket_addresses: Sequence[str] | None = None,
    max_connections: int = MAX_CONNECTIONS,
    has_bulk: bool = True,
    go_betweens: Collection[PeerId] = (),
    is_go_between: bool = False,
) -> AsyncIterator[Network]:
    """Take part in the network under ``identity`` for the time of the context.

    Args:
        identity: whose key proves who we are.
        listen: multiaddresses to listen on, port 0 for any; none to dial only.
        advertise: where others reach us, if not on the addresses of this machine.
        ticket_addresses: the addresses in the run's ticket: these are dialled whatever the rules
            for addresses that peers name, and say in which kinds of network the run is. None: it
            is where we are ourselves.
        max_connections: in both directions together.
        has_bulk: whether bulk may go over TLS connections of its own; libp2p carries it if not.
        go_betweens: who may bring us together with peers whom we can't dial, nor they us.
        is_go_between: whether we do so for others.

    Raises:
        UsageError: ``listen`` is malformed.
        NetworkError: a port is in use or not allowed, or the library stopped working.
    """
    ports = await libp2p_tcp.bind(listen)
    own = concrete_addresses(ports, advertise)
    policy = DialPolicy(own if ticket_addresses is None else ticket_addresses)
    for info in group_by_peer(ticket_addresses or ()):
        policy.trust(info.peer, info.addresses)
    if ticket_addresses is not None:
        own = concrete_addresses(ports, advertise, with_loopback=policy.is_on_loopback)
    failure: BaseException | None = None
    try:
        with quiet():
            async with trio.open_nursery() as nursery:
                stop = trio.Event()
                network = await nursery.start(
                    partial(
                        _run,
                        identity,
                        ports,
                        own=own,
                        gate=Gate(policy),
                        max_connections=max_connections,
                        has_bulk=has_bulk,
                        go_betweens=go_betweens,
                        is_go_between=is_go_between,
                        stop=stop,
                    )
                )
                try:
                    yield network
                except (Exception, KeyboardInterrupt) as exc:
                    failure = exc  # The caller's own: raised as it came, not in a group.
                finally:
                    stop.set()
    except ExceptionGroup as group:
        raise leaves(group)[0] from group
    finally:
        await libp2p_tcp.close(ports)
    if failure is not None:
        raise failure


async def _run(
    identity: Identity,
    ports: Sequence[libp2p_tcp.BoundPort],
    *,
    own: Sequence[str],
    gate: Gate,
    max_connections: int,
    has_bulk: bool,
    go_betweens: Collection[PeerId],
    is_go_between: bool,
    stop: trio.Event,
    task_status: trio.TaskStatus["Libp2pNetwork"],
) -> None:
    """Run the host until ``stop``, then leave nothing of it.

    Once it runs, only ``stop`` ends it: cancelled from outside, the library would
    leave sockets open.
    """
    try:
        async with trio.open_nursery() as nursery:

            async def admit(stream: trio.SocketStream) -> Callable[[], Awaitable[None]] | None:
                return await network.admit(stream)

            def is_proven(peer: PeerId) -> bool:
                return network.is_proven(peer)

            arrivals = Arrivals()
            seats = ConnectionSeats(max_connections, is_protected=is_proven)
            host = make_host(
                identity,
                ports,
                own,
                nursery,
                seats=seats,
                arrivals=arrivals,
                admit=admit if has_bulk else None,
                gate=gate,
                is_proven=is_proven,
            )
            dht, gossip = Dht(host, gate.policy), Gossip(host)
            network = Libp2pNetwork(
                identity.peer,
                own,
                host=host,
                gate=gate,
                dht=dht,
                gossip=gossip,
                nursery=nursery,
                has_bulk=has_bulk,
            )
            network.help_to_meet(go_betweens, is_go_between=is_go_between)
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(host.run([port.maddr for port in ports]))
                stack.push_async_callback(_close, host)
                # It would dial everybody it has ever heard of; discovery decides whom to know.
                await host.get_network().auto_connector.stop()
                for service in (dht.service, gossip.pubsub, gossip.router):
                    await stack.enter_async_context(background_trio_service(service))
                await gossip.pubsub.wait_until_ready()
                stack.callback(network.cut_bulk)
                nursery.start_soon(network.maintain)
                nursery.start_soon(network.watch_for_floods, arrivals)
                nursery.cancel_scope.shield = True
                task_status.started(network)
                await stop.wait()
                nursery.cancel_scope.deadline = trio.current_time() + SHUTDOWN_S
            nursery.cancel_scope.cancel()
    except Exception as exc:
        if stop.is_set():
            # Closing under traffic, the library starts tasks in nurseries already closed.
            _log.debug("network.close_failed", error=repr(leaves(exc)[0])[:200])
            return
        raise NetworkError(f"libp2p stopped working: {leaves(exc)[0]!r}") from exc


async def _close(host: IHost) -> None:
    """Close what the host would leave open."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
        await host.close()


class Libp2pNetwork:
    """Implements :class:`echo2swarm.network.base.Network`; made by :func:`open_network`."""

    def __init__(
        self,
        peer: PeerId,
        addresses: Sequence[str],
        *,
        host: IHost,
        gate: Gate,
        dht: Dht,
        gossip: Gossip,
        nursery: trio.Nursery,
        has_bulk: bool,
    ) -> None:
        self._peer = peer
        self._addresses = tuple(join_address(peer, where) for where in addresses)
        self._host = host
        self._gate = gate
        self._peers = Connections(host, peer, gate)
        self._dht = dht
        self._gossip = gossip
        self._nursery = nursery
        self._services: dict[str, Service] = {}
        self._is_proven: IsProven = nobody
        self._bulk: Bulk | None = None
        if has_bulk:
            self._bulk = Bulk(
                call=self._call_about_bulk,
                where=self._peers.good_addresses,
                host_of=self._peers.host_of,
                policy=gate.policy,
                addresses=addresses,
                services=self._services,
                nursery=nursery,
            )
            serve_calls(
                self,
                BULK_PROTOCOL_ID,
                self._bulk.answer,
                max_request_bytes=MAX_MESSAGE_BYTES,
                max_reply_bytes=MAX_MESSAGE_BYTES,
                timeout_s=ANSWER_S,
                max_streams_per_peer=MAX_CALLS_PER_PEER,
            )

    @property
    def peer(self) -> PeerId:
        """Our own peer id."""
        return self._peer

    def addresses(self) -> tuple[str, ...]:
        """Return where we can be dialled."""
        return self._addresses

    def connected_peers(self) -> frozenset[PeerId]:
        """Return the peers with an open connection."""
        return self._peers.peers()

    def ends(self, peer: PeerId) -> Ends | None:
        """Return the ends of a connection to ``peer``; None if there is none."""
        for connection in open_connections(self._host, peer):
            with suppress(OSError):  # it has just been closed
                return Ends(*map(str, ends_of(connection.muxed_conn)))
        return None

    # Connections.

    async def connect(
        self, info: PeerInfo, *, timeout_s: float = 10.0, told_by: str | None = None
    ) -> None:
        """Connect to a peer, trying each address."""
        try:
            await self._peers.connect(info, timeout_s=timeout_s, told_by=told_by)
        except NetworkError:
            self._dht.failed(info.peer)
            raise
        if self._peers.good_addresses(info.peer):
            self._dht.reached(info.peer)

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to ``peer``."""
        if self._bulk is not None:
            self._bulk.disconnect(peer)
        await self._peers.disconnect(peer)

    async def maintain(self) -> None:
        """Keep the routing table true."""
        while True:
            self._peers.note_reached()
            await self._dht.follow_connections()
            await trio.sleep(MAINTENANCE_S)

    async def watch_for_floods(self, arrivals: Arrivals) -> None:
        """Close connections on which more arrives than anybody reads."""
        while True:
            await arrivals.wait()
            self._peers.cut_floods(is_proven=self._is_proven)

    # Streams.

    def serve(self, protocol: str, handler: Handler, limits: ServeLimits) -> None:
        """Answer incoming streams of ``protocol``."""
        service = self._services[protocol] = Service(
            protocol, handler, limits, is_proven=self.is_proven
        )

        async def handle(stream: INetStream) -> None:
            peer = PeerId(str(stream.muxed_conn.peer_id))
            wrapped = Libp2pStream(stream, peer, limits.max_frame_bytes)
            is_done = False
            try:
                is_done = await service.run(wrapped)
            finally:
                await wrapped.finish(is_done=is_done)

        self._host.set_stream_handler(TProtocol(protocol), handle)

    def protect(self, is_proven: IsProven) -> None:
        """Keep a share of what is limited for the peers that ``is_proven`` names."""
        self._is_proven = is_proven

    def is_proven(self, peer: PeerId) -> bool:
        """Return whether the application has said so of a peer."""
        return self._is_proven(peer)

    def open_stream(
        self, peer: PeerId, protocol: str, *, max_frame_bytes: int, bulk: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to a peer."""
        return self._open_stream(peer, protocol, max_frame_bytes, bulk=bulk)

    @asynccontextmanager
    async def _open_stream(
        self, peer: PeerId, protocol: str, max_frame_bytes: int, *, bulk: bool
    ) -> AsyncIterator[Stream]:
        wrapped: TlsStream | Libp2pStream | None = None
        if bulk and self._bulk is not None and not self._peers.is_met(peer):
            wrapped = await self._bulk.open(peer, protocol, max_frame_bytes)
        if wrapped is None:
            connection = await self._peers.get(peer, bulk=bulk)
            stream = await self._negotiate(connection, peer, protocol)
            wrapped = Libp2pStream(stream, peer, max_frame_bytes)
        is_done = False
        try:
            yield wrapped
            is_done = True
        finally:
            await wrapped.finish(is_done=is_done)

    async def _negotiate(self, connection: INetConn, peer: PeerId, protocol: str) -> INetStream:
        stream = None
        is_agreed = False
        try:
            with trio.fail_after(OPEN_S):
                stream = await connection.new_stream()
                await MultiselectClient().select_one_of(
                    [TProtocol(protocol)], MultiselectCommunicator(stream), int(OPEN_S)
                )
            is_agreed = True
        except Exception as exc:
            raise NetworkError(f"{short(peer)} opens no stream for {protocol}: {exc!r}") from exc
        finally:
            if stream is not None and not is_agreed:
                await Libp2pStream(stream, peer, 0).finish(is_done=False)
        stream.set_protocol(TProtocol(protocol))
        return stream

    # Meetings.

    def help_to_meet(self, go_betweens: Collection[PeerId], *, is_go_between: bool) -> None:
        """Connect to peers with the help of ``go_betweens``; be one for others, if wanted."""
        if go_betweens:
            meetings = Meetings(
                self._host,
                self._peer,
                go_betweens=go_betweens,
                negotiate=self._negotiate,
                nursery=self._nursery,
                policy=self._gate.policy,
            )
            self.serve(INVITE_PROTOCOL_ID, meetings.follow_invitation, INVITE_LIMITS)
            self._peers.meetings = meetings
        if is_go_between:
            helper = GoBetween(self._host, negotiate=self._negotiate)
            self.serve(ASK_PROTOCOL_ID, helper.bring_together, ASK_LIMITS)

    # Bulk.

    async def _call_about_bulk(self, peer: PeerId, request: bytes, within_s: float) -> bytes:
        return await call(
            self,
            peer,
            BULK_PROTOCOL_ID,
            request,
            max_reply_bytes=MAX_MESSAGE_BYTES,
            timeout_s=within_s,
        )

    async def admit(self, stream: trio.SocketStream) -> Callable[[], Awaitable[None]] | None:
        """Take over a connection that is none of libp2p's."""
        return await self._bulk.admit(stream) if self._bulk is not None else None

    def cut_bulk(self) -> None:
        """Break all bulk streams off."""
        if self._bulk is not None:
            self._bulk.cut()

    # Gossip and DHT.

    def subscribe(
        self,
        topic: str,
        validator: Validator,
        *,
        max_bytes: int = MAX_GOSSIP_BYTES,
        authors: Collection[PeerId] | None = None,
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[tuple[PeerId, bytes]]]:
        """Join a gossip topic."""
        subscription = Subscription(topic, validator, max_bytes=max_bytes, authors=authors)
        return self._gossip.subscribe(topic, subscription, self._nursery)

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossip ``data`` to the subscribers of ``topic``."""
        await self._gossip.publish(topic, data)

    async def provide(self, key: bytes) -> None:
        """Tell the DHT that we belong to ``key``."""
        await self._dht.provide(key)

    async def find_providers(self, key: bytes) -> Sequence[PeerInfo]:
        """Ask the DHT who belongs to ``key``."""
        found = await self._dht.find_providers(key)
        for info in found:
            self._peers.learn(info, is_hearsay=True)
        return found

    async def find_peer(self, peer: PeerId) -> PeerInfo | None:
        """Ask the DHT for the addresses of ``peer``."""
        return await self._dht.find_peer(peer)

    async def put_record(self, key: str, value: bytes) -> None:
        """Store a sealed advert in the DHT."""
        await self._dht.put(key, value)

    async def get_record(self, key: str) -> bytes | None:
        """Return the newest sealed advert under ``key``."""
        return await self._dht.get(key)
