"""The network port over libp2p: TCP, Noise, yamux, Kademlia, GossipSub.

``docs/adr/0002-network-adapters.md`` says what of the library is used, what is
worked around, and why. The library is imported here and in the modules named
``libp2p_*`` only.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

import structlog
import trio
from libp2p.abc import IHost, INetConn, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from echo2swarm.errors import NetworkError
from echo2swarm.identity import Identity
from echo2swarm.network import libp2p_tcp
from echo2swarm.network.addresses import join_address, merge
from echo2swarm.network.base import (
    Handler,
    Network,
    PeerInfo,
    ServeLimits,
    Stream,
    Validator,
)
from echo2swarm.network.libp2p_dht import Dht
from echo2swarm.network.libp2p_gossip import Gossip
from echo2swarm.network.libp2p_host import (
    MAX_BUFFERED_BYTES,
    buffered_bytes,
    concrete_addresses,
    make_host,
)
from echo2swarm.network.libp2p_log import quiet
from echo2swarm.network.libp2p_streams import Libp2pStream
from echo2swarm.network.serving import Service, leaves
from protocols.ids import PeerId, short

MAX_CONNECTIONS: Final = 512
OPEN_S: Final = 10.0
"""To open a stream on an open connection."""
CLOSE_S: Final = 5.0
MAINTENANCE_S: Final = 1.0
MAX_KNOWN_PEERS: Final = 4096
ADDRESS_TTL_S: Final = 3600

_log = structlog.get_logger()


@asynccontextmanager
async def open_network(
    identity: Identity,
    listen: Sequence[str],
    *,
    advertise: Sequence[str] = (),
    max_connections: int = MAX_CONNECTIONS,
) -> AsyncIterator[Network]:
    """Take part in the network under ``identity`` for the time of the context.

    Args:
        identity: whose key proves who we are.
        listen: multiaddresses to listen on, port 0 for any; none to dial only.
        advertise: where others reach us, if not on the addresses of this machine.
        max_connections: in both directions together.

    Raises:
        UsageError: ``listen`` is malformed.
        NetworkError: a port is in use or not allowed, or the library stopped working.
    """
    ports = await libp2p_tcp.bind(listen)
    failure: BaseException | None = None
    try:
        with quiet():
            async with trio.open_nursery() as nursery:
                stop = trio.Event()
                network = await nursery.start(
                    _run, identity, ports, tuple(advertise), max_connections, stop
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
    advertise: Sequence[str],
    max_connections: int,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus["Libp2pNetwork"],
) -> None:
    """Run the host until ``stop``, then leave nothing of it."""
    try:
        async with trio.open_nursery() as nursery:
            host = make_host(identity, ports, advertise, nursery, max_connections=max_connections)
            dht, gossip = Dht(host), Gossip(host)
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(host.run([port.maddr for port in ports]))
                stack.push_async_callback(_close, host)
                # It would dial everybody it has ever heard of; discovery decides whom to know.
                await host.get_network().auto_connector.stop()
                for service in (dht.service, gossip.pubsub, gossip.router):
                    await stack.enter_async_context(background_trio_service(service))
                await gossip.pubsub.wait_until_ready()
                network = Libp2pNetwork(
                    identity.peer,
                    concrete_addresses(ports, advertise),
                    host=host,
                    dht=dht,
                    gossip=gossip,
                    nursery=nursery,
                )
                nursery.start_soon(network.maintain)
                task_status.started(network)
                await stop.wait()
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
        dht: Dht,
        gossip: Gossip,
        nursery: trio.Nursery,
    ) -> None:
        self._peer = peer
        self._addresses = tuple(join_address(peer, where) for where in addresses)
        self._host = host
        self._swarm = host.get_network()
        self._dht = dht
        self._gossip = gossip
        self._nursery = nursery
        self._known: dict[PeerId, tuple[str, ...]] = {}
        self._dial_locks: WeakValueDictionary[PeerId, trio.Lock] = WeakValueDictionary()

    @property
    def peer(self) -> PeerId:
        """Our own peer id."""
        return self._peer

    def addresses(self) -> tuple[str, ...]:
        """Return where we can be dialled."""
        return self._addresses

    def connected_peers(self) -> frozenset[PeerId]:
        """Return the peers with an open connection."""
        ids = self._host.get_connected_peers()
        return frozenset(PeerId(str(peer)) for peer in ids if self._connections(peer))

    # Connections.

    async def connect(self, info: PeerInfo, *, timeout_s: float = 10.0) -> None:
        """Connect to a peer, trying each address."""
        if info.peer == self._peer:
            raise NetworkError("a peer does not connect to itself")
        async with self._dial_lock(info.peer):
            if self._connections(ID.from_string(info.peer)):
                return
            await self._dial(info.peer, info.addresses, timeout_s=timeout_s)

    async def _dial(self, peer: PeerId, addresses: Sequence[str], *, timeout_s: float) -> INetConn:
        """Make a new connection at the first address that answers."""
        failures = []
        deadline_s = trio.current_time() + timeout_s
        for i, where in enumerate(addresses):
            # What is left is shared, so that one silent address can't use up the time of all.
            limit_s = (deadline_s - trio.current_time()) / (len(addresses) - i)
            try:
                with trio.fail_after(max(limit_s, 0)):
                    connection = await self._swarm.dial_addr(Multiaddr(where), ID.from_string(peer))
            except trio.TooSlowError:
                failures.append(f"{where}: timed out")
            except Exception as exc:
                failures.append(f"{where}: {_explain(exc)}")
            else:
                self._learn(PeerInfo(peer=peer, addresses=(where,)))
                return connection
        raise NetworkError(f"can't reach peer {peer}: {'; '.join(failures) or 'no address known'}")

    def _dial_lock(self, peer: PeerId) -> trio.Lock:
        return self._dial_locks.setdefault(peer, trio.Lock())

    def _learn(self, info: PeerInfo) -> None:
        addresses = merge(info.addresses, self._known.pop(info.peer, ()))
        self._known[info.peer] = addresses
        if len(self._known) > MAX_KNOWN_PEERS:
            del self._known[next(iter(self._known))]
        self._host.get_peerstore().add_addrs(
            ID.from_string(info.peer), [Multiaddr(text) for text in addresses], ADDRESS_TTL_S
        )

    def _connections(self, peer: ID) -> list[INetConn]:
        """Return the live connections to ``peer``, the oldest first."""
        return [
            connection
            for connection in self._swarm.get_connections(peer)
            if not connection.is_closed and connection.muxed_conn.is_established
        ]

    async def _connection(self, peer: PeerId, *, bulk: bool) -> INetConn:
        """Return the connection for control messages, or the one for bulk.

        Both sides count the oldest connection as the one for control; bulk goes over
        the newest other one. So they agree without a word about it.
        """
        known = merge(self._known.get(peer, ()), self._dht.known_addresses(peer))
        async with self._dial_lock(peer):
            connections = self._connections(ID.from_string(peer))
            if not connections:
                connections = [await self._dial(peer, known, timeout_s=OPEN_S)]
            if bulk and len(connections) == 1:
                try:
                    connections.append(await self._dial(peer, known, timeout_s=OPEN_S))
                except NetworkError as exc:
                    # It dialled us from behind a router: better one connection than none.
                    _log.debug("bulk.shares_connection", peer=short(peer), error=str(exc))
        return connections[-1] if bulk else connections[0]

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to ``peer``."""
        for connection in self._swarm.get_connections(ID.from_string(peer)):
            await self._close_connection(connection)

    async def _close_connection(self, connection: INetConn) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            try:
                await connection.close()
            except Exception as exc:
                _log.debug("connection.close_failed", error=repr(exc)[:200])

    async def maintain(self) -> None:
        """Keep the routing table true, and close connections that flood us."""
        while True:
            await self._dht.follow_connections()
            for connection in self._swarm.get_connections():
                held_bytes = buffered_bytes(connection)
                if held_bytes > MAX_BUFFERED_BYTES:
                    peer = PeerId(str(connection.muxed_conn.peer_id))
                    _log.warning("peer.flooding", peer=short(peer), unread_bytes=held_bytes)
                    await self._close_connection(connection)
            await trio.sleep(MAINTENANCE_S)

    # Streams.

    def serve(self, protocol: str, handler: Handler, limits: ServeLimits) -> None:
        """Answer incoming streams of ``protocol``."""
        service = Service(protocol, handler, limits)

        async def handle(stream: INetStream) -> None:
            peer = PeerId(str(stream.muxed_conn.peer_id))
            wrapped = Libp2pStream(stream, peer, limits.max_frame_bytes)
            is_done = False
            try:
                is_done = await service.run(wrapped)
            finally:
                await wrapped.finish(is_done=is_done)

        self._host.set_stream_handler(TProtocol(protocol), handle)

    def open_stream(
        self, peer: PeerId, protocol: str, *, max_frame_bytes: int, bulk: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to a peer."""
        return self._open_stream(peer, protocol, max_frame_bytes, bulk=bulk)

    @asynccontextmanager
    async def _open_stream(
        self, peer: PeerId, protocol: str, max_frame_bytes: int, *, bulk: bool
    ) -> AsyncIterator[Stream]:
        connection = await self._connection(peer, bulk=bulk)
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

    # Gossip and DHT.

    def subscribe(
        self, topic: str, validator: Validator
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[tuple[PeerId, bytes]]]:
        """Join a gossip topic."""
        return self._gossip.subscribe(topic, validator, self._nursery)

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
            self._learn(info)
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


def _explain(exc: BaseException) -> str:
    """Return in a few words why a dial failed."""
    root = exc
    while True:
        if isinstance(root, BaseExceptionGroup):
            root = leaves(root)[0]
        elif (inner := root.__cause__ or root.__context__) is not None:
            root = inner
        else:
            break
    if isinstance(root, OSError):
        return root.strerror or str(root)
    return str(root).partition("\n")[0][:160] or type(root).__name__
