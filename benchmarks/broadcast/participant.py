"""One process of the swarm that is measured: learner, node, or a node that sends garbage.

It is the product's own code, put together as the product does it; only who is whose
neighbour is told by the benchmark, and nobody trains or generates. Run by
:mod:`benchmarks.broadcast.swarm`::

    python -m benchmarks.broadcast.participant node FOLDER 10.77.0.2 --learner=PEER
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn, cast

import structlog
import trio

from benchmarks.broadcast.wire import commands, say
from echo2swarm.network.addresses import split_address
from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity, load_or_create
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import PolicyRules, publish_version
from echo2swarm.weights.store.library import HeldVersion, VersionLibrary, open_library
from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.store.store import PayloadStore
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.banned import BanList
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from protocols.ids import PeerId, PolicyVersion, RunId, public_key_of
from protocols.sampling import SamplingParams

PORT: Final = 4001
RUN: Final = RunId("broadcast")
RULES: Final = PolicyRules(sampling=SamplingParams(1.0, 16, (0,)), max_staleness=0, publish_every=1)
FIRST: Final = PolicyVersion(0)
FIRST_BYTES: Final = 4_000_000
"""Enough to go over bulk streams, which the version that is measured finds open."""
MEASURED: Final = PolicyVersion(1)
TICK_S: Final = 0.25
REDIAL_S: Final = 1.0
GOSSIP_S: Final = 2.0
"""Until gossip has a mesh, and connecting has left nothing to do."""


def main() -> None:
    """Take part until the parent closes our input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("learner", "node", "garbage"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("ip")
    parser.add_argument("--learner", type=PeerId)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--star", action="store_true")
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(_take_part, args)


async def _take_part(args: argparse.Namespace) -> None:
    identity = load_or_create(args.folder / "identity")
    learner = identity.peer if args.role == "learner" else args.learner
    async with (
        open_network(identity, [f"/ip4/{args.ip}/tcp/{PORT}"]) as network,
        open_library(
            args.folder / "library", run=RUN, learner_key=public_key_of(learner)
        ) as library,
        trio.open_nursery() as nursery,
    ):
        traffic = Traffic()
        if args.role == "learner":
            await nursery.start(_lead, args, identity, network, library, traffic)
        else:
            await nursery.start(_follow, args, learner, network, library, traffic)
        nursery.cancel_scope.cancel()


async def _lead(
    args: argparse.Namespace,
    identity: Identity,
    network: Network,
    library: VersionLibrary,
    traffic: Traffic,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Publish snapshots when told, and serve them; one that is here already, at once."""
    # Where nobody passes anything on there is nothing to deal.
    rate_of = None if args.star else lambda _: None
    ChunkServer(network, library.store, traffic, upload_rate_of=rate_of)
    announcer = ManifestAnnouncer(network, RUN)
    held = library.newest
    if held is not None:
        await announcer.announce(held.sealed)

    async def prepare(version: PolicyVersion, size_bytes: int) -> HeldVersion:
        folder = args.folder / f"model-{version}"
        _write_model(folder, size_bytes, seed=version)
        return await publish_version(
            library, version=version, snapshot=folder, assets=folder, rules=RULES, key=identity.key
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(announcer.run)
        nursery.start_soon(_tick, traffic, lambda: args.bytes)
        say("ready", peer=network.peer, address=network.addresses()[0])
        async for command in commands():
            if command["do"] == "open":
                await announcer.announce((await prepare(FIRST, FIRST_BYTES)).sealed)
            elif command["do"] == "prepare":
                held = await prepare(MEASURED, args.bytes)
                say("prepared", payload_sent_bytes=traffic.sent_bytes)
            elif command["do"] == "publish" and held is not None:
                say("published", at_s=time.monotonic())
                await announcer.announce(held.sealed)
        nursery.cancel_scope.cancel()
    task_status.started()


async def _follow(
    args: argparse.Namespace,
    learner: PeerId,
    network: Network,
    library: VersionLibrary,
    traffic: Traffic,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Fetch what is published, and serve it."""
    store = library.store
    if args.role == "garbage":
        store = cast("PayloadStore", _GarbageStore(store))
    shunned = BanList()
    if not args.star:
        ChunkServer(network, store, traffic, shunned=shunned)

    def holders() -> Iterable[PeerId]:
        return {learner} if args.star else network.connected_peers() | {learner}

    sync = PolicySync(
        network,
        library,
        learner=learner,
        holders=holders,
        rng=random.Random(network.peer),
        traffic=traffic,
        shunned=shunned,
    )

    def held_bytes() -> int:
        if sync.progress is not None:
            return sync.progress.held_bytes
        held = sync.held
        return held.manifest.weights.size_bytes if held and held.manifest.version else 0

    async with trio.open_nursery() as nursery:
        await nursery.start(sync.run)
        nursery.start_soon(_tick, traffic, held_bytes)
        nursery.start_soon(_tell_held, sync)
        say("ready", peer=network.peer, address=network.addresses()[0])
        async for command in commands():
            if command["do"] == "connect":
                nursery.start_soon(_stay_connected, network, command["to"])
            elif command["do"] == "report":
                faults = [(each.peer_id, each.reason) for each in sync.take_reports()]
                say("report", faults=faults)
        nursery.cancel_scope.cancel()
    task_status.started()


async def _tell_held(sync: PolicySync) -> None:
    after = None
    while True:
        after = PolicyVersion((await sync.next_version(after)).manifest.version)
        say("opened" if after == FIRST else "held", at_s=time.monotonic())


async def _tick(traffic: Traffic, held_bytes: Callable[[], int]) -> NoReturn:
    """Say now and then how far it is."""
    while True:
        say(
            "tick",
            at_s=time.monotonic(),
            held_bytes=held_bytes(),
            payload_sent_bytes=traffic.sent_bytes,
            payload_received_bytes=traffic.received_bytes,
            cpu_s=round(time.process_time(), 3),
            max_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
        )
        await trio.sleep(TICK_S)


async def _stay_connected(network: Network, addresses: list[str]) -> NoReturn:
    """Dial whom we are told to, and again when a connection is lost."""
    wanted = [split_address(address) for address in addresses]
    is_told = False
    while True:
        connected = network.connected_peers()
        async with trio.open_nursery() as nursery:
            for peer, where in wanted:
                if peer not in connected:
                    nursery.start_soon(_dial, network, peer, where)
        if not is_told and network.connected_peers() >= {peer for peer, _ in wanted}:
            is_told = True
            say("connected")
        await trio.sleep(REDIAL_S)


async def _dial(network: Network, peer: PeerId, where: str) -> None:
    try:
        await network.connect(PeerInfo(peer=peer, addresses=(where,)))
    except NetworkError as exc:
        structlog.get_logger().info("peer.unreachable", error=str(exc))


class _GarbageStore:
    """A payload store whose chunks are wrong when they are read to be sent."""

    def __init__(self, store: PayloadStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def read_chunk(self, payload: Payload, index: int) -> bytes:
        data = await self._store.read_chunk(payload, index)
        if payload.ref.size_bytes <= 2 * FIRST_BYTES:
            return data  # It would be shunned before it is measured what that costs.
        return bytes([data[0] ^ 1]) + data[1:]


def _write_model(folder: Path, size_bytes: int, *, seed: int) -> None:
    """Write a snapshot of random bytes; what they mean is of no interest here."""
    folder.mkdir()
    rng = random.Random(seed)
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        for left in range(size_bytes, 0, -1_000_000):
            file.write(rng.randbytes(min(left, 1_000_000)))


if __name__ == "__main__":
    main()
