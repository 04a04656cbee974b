"""Learner and nodes with real stores and services, on the in-memory network."""

import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import PolicyRules, publish_version
from echo2swarm.weights.store.library import HeldVersion, VersionLibrary, open_library
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from protocols.ids import PeerId, PolicyVersion, peer_id_of
from protocols.manifest import MIN_CHUNK_BYTES
from tests.echo2swarm.weights.made import LEARNER_KEY, RULES, RUN, assets, snapshot
from tests.fakes.network.memory import MemoryHub

LEARNER = peer_id_of(LEARNER_KEY.public_key())
SIZE = 40 * MIN_CHUNK_BYTES + 7


def node_key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes(30) + b"\7" + bytes([number]))


class Learner:
    """Publishes, announces and serves."""

    def __init__(
        self, network: Network, library: VersionLibrary, folder: Path, traffic: Traffic
    ) -> None:
        self.network = network
        self.library = library
        self.traffic = traffic
        self.announcer = ManifestAnnouncer(network, RUN)
        self._folder = folder

    async def publish(
        self,
        version: int,
        *,
        size: int = SIZE,
        data: bytes | None = None,
        rules: PolicyRules = RULES,
        announce: bool = True,
    ) -> HeldVersion:
        model = self._folder / "model"
        # A new folder each time: what was published is never written to again.
        folder = self._folder / f"{len(list(self._folder.iterdir()))}-v{version}"
        source = snapshot(folder, seed=version, size=size, data=data)
        held = await publish_version(
            self.library,
            version=PolicyVersion(version),
            snapshot=source,
            assets=model if model.exists() else assets(model),
            rules=rules,
            key=LEARNER_KEY,
        )
        if announce:
            await self.announcer.announce(held.sealed)
        return held


class Node:
    """Syncs and serves."""

    def __init__(
        self,
        network: Network,
        library: VersionLibrary,
        holders: Callable[[], Iterable[PeerId]],
        seed: int,
    ) -> None:
        self.network = network
        self.library = library
        self.traffic = Traffic()
        self.server = ChunkServer(network, library.store, self.traffic)
        self.sync = PolicySync(
            network,
            library,
            learner=LEARNER,
            holders=holders,
            rng=random.Random(seed),
            traffic=self.traffic,
        )


@asynccontextmanager
async def learner(hub: MemoryHub, folder: Path) -> AsyncIterator[Learner]:
    async with (
        hub.network(LEARNER_KEY) as network,
        open_library(folder / "library", run=RUN, learner_key=LEARNER_KEY.public_key()) as library,
        trio.open_nursery() as nursery,
    ):
        traffic = Traffic()
        ChunkServer(network, library.store, traffic, upload_rate_of=lambda _: None)
        it = Learner(network, library, folder, traffic)
        nursery.start_soon(it.announcer.run)
        yield it
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def node(
    hub: MemoryHub,
    folder: Path,
    *,
    number: int = 1,
    connect_to: Iterable[Network] = (),
    is_synced: bool = True,
) -> AsyncIterator[Node]:
    async with (
        hub.network(node_key(number)) as network,
        open_library(folder / "library", run=RUN, learner_key=LEARNER_KEY.public_key()) as library,
        trio.open_nursery() as nursery,
    ):
        for other in connect_to:
            await network.connect(address_of(other))
        it = Node(network, library, network.connected_peers, number)
        if is_synced:
            await nursery.start(it.sync.run)
        yield it
        nursery.cancel_scope.cancel()


def address_of(network: Network) -> PeerInfo:
    return PeerInfo(
        peer=network.peer,
        addresses=tuple(a.split("/p2p/")[0] for a in network.addresses()),
    )
