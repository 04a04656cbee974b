"""Two ways to get networks that can reach each other, for the same contract tests."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.identity import Identity
from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.network.libp2p import open_network
from echo2swarm.network.memory import MemoryHub

PATIENCE_S = 15.0


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

    def join(
        self, number: int, *, where: str | None = None
    ) -> AbstractAsyncContextManager[Network]:
        return open_network(Identity.of(key_of(number)), [where or "/ip4/127.0.0.1/tcp/0"])
