"""What :mod:`echo2swarm.network.libp2p.network` opens: the network port over a running host."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final

import trio
from libp2p.abc import IHost, INetConn, INetStream
from libp2p.custom_types import TProtocol
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from echo2swarm.network.addresses import join_address
from echo2swarm.network.admission.proven import IsProven
from echo2swarm.network.base import (
    MAX_GOSSIP_BYTES,
    Ends,
    Handler,
    PeerInfo,
    ServeLimits,
    Stream,
    Validator,
)
from echo2swarm.network.bulk.channel import ANSWER_S, BulkChannel
from echo2swarm.network.bulk.stream import TlsStream
from echo2swarm.network.libp2p.arrivals import Arrivals
from echo2swarm.network.libp2p.connections import OPEN_S, Connections
from echo2swarm.network.libp2p.dht import Dht
from echo2swarm.network.libp2p.endpoints import ends_of, open_connections
from echo2swarm.network.libp2p.gate import Gate
from echo2swarm.network.libp2p.gossip import Gossip
from echo2swarm.network.libp2p.holepunch import INVITE_LIMITS, HolePunching
from echo2swarm.network.libp2p.holepunch_coordinator import LIMITS as ASK_LIMITS
from echo2swarm.network.libp2p.holepunch_coordinator import HolePunchCoordinator
from echo2swarm.network.libp2p.streams import Libp2pStream
from echo2swarm.network.rpc import call, serve_calls
from echo2swarm.network.serving import Service, Subscription, nobody
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import NetworkError
from protocols.bulk import MAX_MESSAGE_BYTES
from protocols.bulk import PROTOCOL_ID as BULK_PROTOCOL_ID
from protocols.holepunch import ASK_PROTOCOL_ID, INVITE_PROTOCOL_ID
from protocols.ids import PeerId, short

MAINTENANCE_S: Final = 1.0
MAX_CALLS_PER_PEER: Final = 16


class Libp2pNetwork:
    """Implements :class:`echo2swarm.network.base.Network`; made by ``open_network``."""

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
        self._bulk: BulkChannel | None = None
        if has_bulk:
            self._bulk = BulkChannel(
                call=self._call_about_bulk,
                where=self._peers.good_addresses,
                host_of=self._peers.host_of,
                policy=gate.policy,
                is_proven=self.is_proven,
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

    @property
    def connection_changes(self) -> ChangeEvent:
        """Rung whenever the set of connected peers has changed."""
        return self._peers.changes

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
        """Keep the routing table true, and see what the library does not tell."""
        while True:
            # A connection that breaks counts as closed before the library has cleaned up.
            self._peers.look()
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
            meetings = HolePunching(
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
            helper = HolePunchCoordinator(self._host, negotiate=self._negotiate)
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
