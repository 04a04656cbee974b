"""Several ways to get networks that can reach each other, for the same contract tests."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.identity import Identity
from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.base import Network, PeerInfo, Stream
from echo2swarm.network.libp2p import open_network
from echo2swarm.network.memory import MemoryHub
from protocols.ids import PeerId

PATIENCE_S = 60.0


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


class World(Protocol):
    slow_reader_s: float
    """Long enough that a careless writer would have given up."""
    dead_address: str

    def join(
        self, number: int, *, where: str | None = None
    ) -> AbstractAsyncContextManager[Network]: ...


class MemoryWorld:
    slow_reader_s = 0.2
    dead_address = "/ip4/10.9.9.9/tcp/4001"

    def __init__(self) -> None:
        self.hub = MemoryHub(seed=1, latency_s=(0.0, 0.002))

    def join(
        self, number: int, *, where: str | None = None
    ) -> AbstractAsyncContextManager[Network]:
        return self.hub.network(key_of(number), address=where)


class Libp2pWorld:
    slow_reader_s = 6.0
    dead_address = "/ip4/127.0.0.1/tcp/1"
    has_bulk = True

    def join(
        self, number: int, *, where: str | None = None
    ) -> AbstractAsyncContextManager[Network]:
        return open_network(
            Identity.of(key_of(number)), [where or "/ip4/127.0.0.1/tcp/0"], has_bulk=self.has_bulk
        )


class BulkWorld(Libp2pWorld):
    """The real adapter, and everything goes as bulk."""

    @asynccontextmanager
    async def join(self, number: int, *, where: str | None = None) -> AsyncIterator[Network]:
        async with super().join(number, where=where) as network:
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
