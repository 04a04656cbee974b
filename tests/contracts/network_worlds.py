"""Several ways to get networks that can reach each other, for the same contract tests."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.base import Network, PeerInfo, Stream
from echo2swarm.network.libp2p.network import MAX_CONNECTIONS, open_network
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from protocols.ids import PeerId, peer_id_of
from tests.fakes.network.memory import MemoryHub

PATIENCE_S = 60.0
OPENINGS = (
    b"GET / HTTP/1.0\r\n\r\n",
    b"\x13/multistream/1.0.0\n",
    b"\x13/multistream/1.0.0\n\x07/noise\n",
    b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x20" + bytes(32),
)
"""How a port scan, and a libp2p that breaks off at each step of its handshake, begin."""


def key_of(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def info_of(network: Network) -> PeerInfo:
    (info,) = group_by_peer(network.addresses())
    return info


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until ``condition`` holds; what it waits for is real and takes its time."""
    with trio.fail_after(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - nobody would set an event
            await trio.sleep(0.05)


async def _say_nothing(stream: trio.SocketStream) -> None:
    await stream.receive_some()  # What the other says first.
    await stream.receive_some()  # Until it has had enough.


class World(Protocol):
    slow_reader_s: float
    """Long enough that a careless writer would have given up."""
    dead_address: str

    def join(
        self,
        number: int,
        *,
        where: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> AbstractAsyncContextManager[Network]: ...

    async def break_off(self, victim: Network, count: int) -> None:
        """Begin ``count`` connections to ``victim`` in several ways, and end none of them."""
        ...

    def silence(self) -> AbstractAsyncContextManager[str]:
        """Yield an address where nobody ever says a word."""
        ...


class MemoryWorld:
    slow_reader_s = 0.2
    dead_address = "/ip4/10.9.9.9/tcp/4001"

    def __init__(self) -> None:
        self.hub = MemoryHub(seed=1, latency_s=(0.0, 0.002))

    def join(
        self,
        number: int,
        *,
        where: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> AbstractAsyncContextManager[Network]:
        return self.hub.network(key_of(number), address=where, max_connections=max_connections)

    async def break_off(self, victim: Network, count: int) -> None:
        (where,) = info_of(victim).addresses
        nobody = peer_id_of(key_of(98).public_key())
        async with self.join(99) as stranger:
            for _ in range(count):
                with suppress(NetworkError):  # Another peer answers there.
                    await stranger.connect(PeerInfo(peer=nobody, addresses=(where,)))

    @asynccontextmanager
    async def silence(self) -> AsyncIterator[str]:
        async with self.join(97) as hidden:
            self.hub.partition({hidden.peer})
            yield info_of(hidden).addresses[0]
            self.hub.heal()


class Libp2pWorld:
    slow_reader_s = 6.0
    dead_address = "/ip4/127.0.0.1/tcp/1"
    has_bulk = True

    def join(
        self,
        number: int,
        *,
        where: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> AbstractAsyncContextManager[Network]:
        return open_network(
            Identity.of(key_of(number)),
            [where or "/ip4/127.0.0.1/tcp/0"],
            max_connections=max_connections,
            has_bulk=self.has_bulk,
        )

    async def break_off(self, victim: Network, count: int) -> None:
        port = int(info_of(victim).addresses[0].split("/")[4])
        limit = trio.CapacityLimiter(20)

        async def begin(opening: bytes) -> None:
            async with limit:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(opening)
                    with trio.move_on_after(0.02):
                        await stream.receive_some(1)
                await stream.aclose()

        async with trio.open_nursery() as nursery:
            for i in range(count):
                nursery.start_soon(begin, OPENINGS[i % len(OPENINGS)])

    @asynccontextmanager
    async def silence(self) -> AsyncIterator[str]:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1024)
            nursery.start_soon(trio.serve_listeners, _say_nothing, listeners)
            yield f"/ip4/127.0.0.1/tcp/{listeners[0].socket.getsockname()[1]}"
            nursery.cancel_scope.cancel()


class BulkWorld(Libp2pWorld):
    """The real adapter, and everything goes as bulk."""

    @asynccontextmanager
    async def join(
        self,
        number: int,
        *,
        where: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> AsyncIterator[Network]:
        async with super().join(number, where=where, max_connections=max_connections) as network:
            yield AllBulk(network)


class FallbackWorld(BulkWorld):
    """Everything goes as bulk, but libp2p has to carry it."""

    has_bulk = False


class AllBulk:
    """A network whose streams are all for bulk, whatever the caller says."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def open_stream(
        self, peer: PeerId, protocol: str, *, max_frame_bytes: int, bulk: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        return self.network.open_stream(peer, protocol, max_frame_bytes=max_frame_bytes, bulk=True)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        return getattr(self.network, name)
