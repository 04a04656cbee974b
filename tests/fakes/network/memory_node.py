"""One participant of the in-memory network; see :mod:`tests.fakes.network.memory`."""

import itertools
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import trio

from echo2swarm.network.addresses import join_address, merge_addresses
from echo2swarm.network.admission.connection_seats import ConnectionSeat, ConnectionSeats
from echo2swarm.network.admission.gossip_guard import GossipGuard
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
from echo2swarm.network.records import check_record, newest_record
from echo2swarm.network.serving import Service, Subscription, nobody
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import NetworkError
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.gossip import Validation
from protocols.ids import PeerId, short
from tests.fakes.network.memory_stream import MemoryStream, stream_pair

if TYPE_CHECKING:
    from tests.fakes.network.memory import MemoryHub

REPLICATION: Final = 20
"""The k of Kademlia: so many peers store each record."""
PROVIDER_TTL_S: Final = 24 * 3600.0
MAX_SEEN_MESSAGES: Final = 4096


class MemoryNetwork:
    """Implements :class:`echo2swarm.network.base.Network`; made by ``MemoryHub.network``."""

    def __init__(
        self,
        hub: "MemoryHub",
        peer: PeerId,
        where: str,
        nursery: trio.Nursery,
        *,
        max_connections: int,
    ) -> None:
        self.where = where
        self._hub = hub
        self._peer = peer
        self._nursery = nursery
        self._is_dead = False
        self._seats = ConnectionSeats(max_connections, is_protected=self._is_proven_now)
        self._seat_of: dict[PeerId, ConnectionSeat] = {}
        self._services: dict[str, Service] = {}
        self._is_proven: IsProven = nobody
        self._streams: set[MemoryStream] = set()
        self._known: dict[PeerId, tuple[str, ...]] = {}
        self._topics: dict[str, Subscription] = {}
        self._guard = GossipGuard()
        self._seen: dict[tuple[PeerId, int], None] = {}
        self._changes = ChangeEvent()
        self._num_published = itertools.count()
        self._providers: dict[bytes, dict[PeerId, float]] = {}
        self._records: dict[str, bytes] = {}

    @property
    def peer(self) -> PeerId:
        """Our own peer id."""
        return self._peer

    def addresses(self) -> tuple[str, ...]:
        """Return where we can be dialled."""
        return (join_address(self._peer, self.where),)

    def connected_peers(self) -> frozenset[PeerId]:
        """Return the peers with an open connection."""
        return self._hub.linked(self._peer)

    @property
    def connection_changes(self) -> ChangeEvent:
        """Rung whenever the set of connected peers has changed."""
        return self._changes

    def ends(self, peer: PeerId) -> Ends | None:
        """Return the ends of a connection to ``peer``; None if there is none."""
        other = self._hub.alive(peer)
        if other is None or peer not in self._hub.linked(self._peer):
            return None
        return Ends(self.where, other.where)

    # Connections and streams.

    async def connect(
        self, info: PeerInfo, *, timeout_s: float = 10.0, told_by: str | None = None
    ) -> None:
        """Connect to a peer, trying each address."""
        self._check_alive()
        if info.peer == self._peer:
            raise NetworkError("a peer does not connect to itself")
        if info.peer in self.connected_peers():
            await trio.lowlevel.checkpoint()
            return
        failures = []
        where = "no address"
        with trio.move_on_after(timeout_s) as scope:
            for where in info.addresses:
                failure = await self._dial(info.peer, where, timeout_s / len(info.addresses))
                if failure is None:
                    return
                failures.append(f"{where}: {failure}")
        if scope.cancelled_caught:
            failures.append(f"{where}: timed out")
        raise NetworkError(
            f"can't reach peer {info.peer}: {'; '.join(failures) or 'no address known'}"
        )

    async def _dial(self, peer: PeerId, where: str, limit_s: float) -> str | None:
        """Connect at one address; returns why it failed."""
        await trio.sleep(2 * self._hub.weather.latency_s())
        self._check_alive()
        other = self._hub.at(where)
        if other is None:
            return "connection refused"
        if not self._hub.can_reach(self._peer, other.peer):
            await trio.sleep(limit_s)
            return "timed out"
        if other.peer != peer:
            return "another peer answers there"
        self._hub.link(self._peer, peer)
        self._learn(peer, (where,))
        other._learn(self._peer, (self.where,))
        return None if peer in self.connected_peers() else "all connections are taken"

    def _learn(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        self._known[peer] = merge_addresses(addresses, self._known.get(peer, ()))

    async def disconnect(self, peer: PeerId) -> None:
        """Close the connection to ``peer``."""
        self._hub.unlink(self._peer, peer)
        await trio.lowlevel.checkpoint()

    def serve(self, protocol: str, handler: Handler, limits: ServeLimits) -> None:
        """Answer incoming streams of ``protocol``."""
        self._services[protocol] = Service(protocol, handler, limits, is_proven=self._is_proven_now)

    def protect(self, is_proven: IsProven) -> None:
        """Keep a share of what is limited for the peers that ``is_proven`` names."""
        self._is_proven = is_proven

    def _is_proven_now(self, peer: PeerId) -> bool:
        return self._is_proven(peer)

    def open_stream(
        self,
        peer: PeerId,
        protocol: str,
        *,
        max_frame_bytes: int,
        bulk: bool = False,
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to a peer."""
        return self._open_stream(peer, protocol, max_frame_bytes)

    @asynccontextmanager
    async def _open_stream(
        self, peer: PeerId, protocol: str, max_frame_bytes: int
    ) -> AsyncIterator[Stream]:
        await self.connect(PeerInfo(peer=peer, addresses=self._known.get(peer, ())))
        await trio.sleep(2 * self._hub.weather.reliable_latency_s())
        other = self._hub.alive(peer)
        if other is None or peer not in self.connected_peers():
            raise NetworkError(f"connection to {short(peer)} broke")
        service = other._services.get(protocol)
        if service is None:
            raise NetworkError(f"{short(peer)} does not speak {protocol}")
        ours, theirs = stream_pair(
            self._hub.weather,
            self._peer,
            peer,
            dialler_max_frame_bytes=max_frame_bytes,
            listener_max_frame_bytes=service.limits.max_frame_bytes,
        )
        self._streams.add(ours)
        other._streams.add(theirs)
        other._nursery.start_soon(other._run_service, service, theirs)
        try:
            yield ours
        except BaseException:
            ours.reset()
            raise
        else:
            ours.close()
        finally:
            self._streams.discard(ours)

    async def _run_service(self, service: Service, stream: MemoryStream) -> None:
        is_done = False
        try:
            is_done = await service.run(stream)
        finally:
            self._streams.discard(stream)
            if is_done:
                stream.close()
            else:
                stream.reset()

    # Gossip.

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
        return self._subscribe(topic, subscription)

    @asynccontextmanager
    async def _subscribe(
        self, topic: str, subscription: Subscription
    ) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[PeerId, bytes]]]:
        if topic in self._topics:
            raise LocalProtocolError(f"already subscribed to {topic}")
        self._topics[topic] = subscription
        try:
            yield subscription.receive
        finally:
            del self._topics[topic]
            subscription.close()

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossip ``data`` to the subscribers of ``topic``."""
        self._check_alive()
        if len(data) > MAX_GOSSIP_BYTES:
            raise LocalProtocolError(f"gossip of {len(data)} bytes, limit {MAX_GOSSIP_BYTES}")
        message_id = (self._peer, next(self._num_published))
        self._mark_seen(message_id)
        self._forward(topic, message_id, data, exclude=self._peer)
        await trio.lowlevel.checkpoint()

    def _forward(
        self, topic: str, message_id: tuple[PeerId, int], data: bytes, *, exclude: PeerId
    ) -> None:
        for neighbour in sorted(self.connected_peers() - {exclude}):
            other = self._hub.alive(neighbour)
            if other is not None and topic in other._topics:
                other._nursery.start_soon(other._gossiped, self._peer, topic, message_id, data)

    async def _gossiped(
        self, sender: PeerId, topic: str, message_id: tuple[PeerId, int], data: bytes
    ) -> None:
        await trio.sleep(self._hub.weather.latency_s())
        subscription = self._topics.get(topic)
        if self._hub.weather.is_lost() or subscription is None or message_id in self._seen:
            return
        if sender not in self.connected_peers():
            return
        now_s = trio.current_time()
        if not self._guard.admit(sender, now_s):
            return
        self._mark_seen(message_id)
        author = message_id[0]
        fault = subscription.objection(author, len(data))
        fate = Validation.REJECT if fault else subscription.judge(author, data)
        if fate is Validation.ACCEPT:
            subscription.deliver(author, data)
            self._forward(topic, message_id, data, exclude=sender)
        elif fate is Validation.REJECT and self._guard.fault(sender, now_s):
            subscription.warn("gossip.shut_out", sender, fault or "it is rejected")

    def _mark_seen(self, message_id: tuple[PeerId, int]) -> None:
        self._seen[message_id] = None
        if len(self._seen) > MAX_SEEN_MESSAGES:
            del self._seen[next(iter(self._seen))]

    # DHT.

    async def provide(self, key: bytes) -> None:
        """Tell the DHT that we belong to ``key``."""
        for other in await self._closest(key):
            other._providers.setdefault(key, {})[self._peer] = trio.current_time() + PROVIDER_TTL_S
            other._learn(self._peer, (self.where,))

    async def find_providers(self, key: bytes) -> Sequence[PeerInfo]:
        """Ask the DHT who belongs to ``key``."""
        found: dict[PeerId, tuple[str, ...]] = {}
        for other in await self._closest(key):
            for peer, expiry_s in other._providers.get(key, {}).items():
                if peer != self._peer and expiry_s > trio.current_time():
                    found[peer] = merge_addresses(found.get(peer, ()), other._known.get(peer, ()))
        for peer, addresses in found.items():
            self._learn(peer, addresses)
        return [PeerInfo(peer=peer, addresses=found[peer]) for peer in sorted(found)]

    async def find_peer(self, peer: PeerId) -> PeerInfo | None:
        """Ask the DHT for the addresses of ``peer``."""
        addresses: tuple[str, ...] = ()
        for other in await self._closest(peer.encode()):
            addresses = merge_addresses(addresses, other._known.get(peer, ()))
        return PeerInfo(peer=peer, addresses=addresses) if addresses else None

    async def put_record(self, key: str, value: bytes) -> None:
        """Store a sealed advert in the DHT."""
        try:
            check_record(key, value)
        except RemoteProtocolError as exc:
            raise LocalProtocolError(f"not a record to publish: {exc}") from exc
        for other in await self._closest(key.encode()):
            held = (other._records[key],) if key in other._records else ()
            newest = newest_record(key, (value, *held))
            if newest is not None:
                other._records[key] = newest

    async def get_record(self, key: str) -> bytes | None:
        """Return the newest sealed advert under ``key``."""
        holders = await self._closest(key.encode())
        return newest_record(key, [n._records[key] for n in holders if key in n._records])

    async def _closest(self, key: bytes) -> Sequence["MemoryNetwork"]:
        """Walk the DHT: the peers closest to ``key`` that live connections lead to, and us."""
        self._check_alive()
        await trio.sleep(2 * self._hub.weather.reliable_latency_s())
        self._check_alive()
        target = int.from_bytes(sha256(key).digest(), "big")

        def distance(peer: PeerId) -> int:
            return target ^ int.from_bytes(sha256(peer.encode()).digest(), "big")

        others = self._hub.component(self._peer) - {self._peer}
        chosen = (self._peer, *sorted(others, key=distance)[:REPLICATION])
        return [network for peer in chosen if (network := self._hub.alive(peer)) is not None]

    # What the hub does to us.

    def linked(self, peer: PeerId, *, is_dialled: bool) -> PeerId | None:
        """Note a new connection; returns the peer whose connection has to go for it."""
        other = self._hub.alive(peer)
        where = "" if other is None else other.where.removeprefix("/ip4/").partition("/")[0]
        seat = self._seat_of[peer] = ConnectionSeat(where, is_dialled, peer)
        victim = self._seats.take(seat)
        self._changes.notify()
        return None if victim is None else victim.peer

    def unlinked(self, peer: PeerId) -> None:
        """Note that the connection to ``peer`` is gone, and break every stream on it."""
        if (seat := self._seat_of.pop(peer, None)) is not None:
            self._seats.leave(seat)
            self._changes.notify()
        for stream in [s for s in self._streams if s.peer == peer]:
            stream.reset()
            self._streams.discard(stream)

    def die(self) -> None:
        """Stop all that runs here."""
        self._is_dead = True
        for subscription in self._topics.values():
            subscription.close()
        self._nursery.cancel_scope.cancel()

    def _check_alive(self) -> None:
        if self._is_dead:
            raise NetworkError("this network is closed")
