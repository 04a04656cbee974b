"""One snapshot from a learner to N nodes: processes over libp2p on loopback.

Shows how much the learner sends when every node that holds a chunk serves it,
how long the last node waits, and what the transfer costs in processor time::

    python -m benchmarks.transfer --nodes 3 --mb 269
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import trio

from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.system.identity import load_or_create
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import PolicyRules, publish_version
from echo2swarm.weights.store.library import open_library
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from protocols.ids import PeerId, PolicyVersion, RunId, public_key_of
from protocols.sampling import SamplingParams

RUN: Final = RunId("transfer")
RULES: Final = PolicyRules(sampling=SamplingParams(1.0, 16, (0,)), max_staleness=0, publish_every=1)
MAX_COPIES: Final = 1.3


def main() -> int:
    """Run the benchmark, or be one of its processes."""
    parser = argparse.ArgumentParser(description="Measure how one version reaches N nodes.")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--mb", type=float, default=64)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=("learner", "node"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peers", nargs="*", default=(), help=argparse.SUPPRESS)
    args = parser.parse_args()
    size_bytes = int(args.mb * 1e6)
    if args.child:  # its output is for the parent
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if args.child == "learner":
        trio.run(learner, args.folder, size_bytes)
    elif args.child == "node":
        trio.run(node, args.folder, args.peers)
    else:
        return measure(args.nodes, size_bytes, args.json)
    return 0


def measure(num_nodes: int, size_bytes: int, json_path: Path | None) -> int:
    """Start the processes, let one version travel, and hold the figures to the mark."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        owner = stack.enter_context(Child("learner", root / "l", f"--mb={size_bytes / 1e6}"))
        peers = [owner.read()["address"]]
        nodes = []
        for number in range(num_nodes):
            nodes.append(stack.enter_context(Child("node", root / f"n{number}", "--peers", *peers)))
            peers.append(nodes[-1].read()["address"])
        owner.tell("go")
        figures = [child.read() for child in nodes]
        held_unix_s = max(f["held_unix_s"] for f in figures)
        for child in (owner, *nodes):
            child.tell("stop")
        last = owner.read()
        figures = [f | child.read() for f, child in zip(figures, nodes, strict=True)]
    seconds = held_unix_s - last["announced_unix_s"]
    copies = last["sent_bytes"] / size_bytes
    rows = [("learner", last["sent_bytes"] / 1e6, 0.0, last["cpu_s"])]
    rows += [
        (f"node {i}", f["sent_bytes"] / 1e6, f["received_bytes"] / 1e6, f["cpu_s"])
        for i, f in enumerate(figures)
    ]
    outcome = Outcome(
        name="transfer",
        what=(
            f"{size_bytes / 1e6:g} MB to {num_nodes} nodes over libp2p on loopback; "
            f"all hold it after {seconds:.1f} s; the learner sent {copies:.2f} copies."
        ),
        columns=("process", "sent MB", "received MB", "CPU s"),
        rows=tuple(rows),
        marks=(Mark(name="copies sent by the learner", value=copies, at_most=MAX_COPIES),),
        figures={"seconds": seconds, "copies": copies, "learner": last, "nodes": figures},
    )
    return finish(outcome, json_path=json_path)


class Child:
    """One process of the swarm; it says JSON lines, and is told words."""

    def __init__(self, role: str, folder: Path, *args: str) -> None:
        folder.mkdir()
        command = [sys.executable, "-m", "benchmarks.transfer", "--child", role]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--folder={folder}", *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def read(self) -> dict[str, Any]:
        """Return the next line it says."""
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"process {self._process.pid} died; run its command by hand")
        return msgspec.json.decode(line, type=dict[str, Any])

    def tell(self, word: str) -> None:
        """Send it one word."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()


@asynccontextmanager
async def on_the_network(folder: Path, peers: Sequence[str]) -> AsyncIterator[Network]:
    """Be on the network, connected to ``peers``."""
    identity = load_or_create(folder / "identity")
    async with open_network(identity, ["/ip4/127.0.0.1/tcp/0"]) as network:
        for address in peers:
            where, _, peer = address.rpartition("/p2p/")
            await network.connect(PeerInfo(peer=PeerId(peer), addresses=(where,)))
        yield network


async def learner(folder: Path, size_bytes: int) -> None:
    """Publish one snapshot, announce it when told, and serve it."""
    key = load_or_create(folder / "identity").key
    async with (
        on_the_network(folder, ()) as network,
        open_library(folder / "library", run=RUN, learner_key=key.public_key()) as library,
    ):
        traffic = Traffic()
        ChunkServer(network, library.store, traffic)
        announcer = ManifestAnnouncer(network, RUN)
        write_model(folder / "model", size_bytes)
        held = await publish_version(
            library,
            version=PolicyVersion(0),
            snapshot=folder / "model",
            assets=folder / "model",
            rules=RULES,
            key=key,
        )
        say(address=network.addresses()[0])
        await trio.to_thread.run_sync(sys.stdin.readline)
        cpu_s, announced_unix_s = time.process_time(), time.time()
        await announcer.announce(held.sealed)
        await trio.to_thread.run_sync(sys.stdin.readline)
        say(
            sent_bytes=traffic.sent_bytes,
            cpu_s=time.process_time() - cpu_s,
            announced_unix_s=announced_unix_s,
        )


async def node(folder: Path, peers: Sequence[str]) -> None:
    """Sync, relay, and say when the version is held."""
    owner = PeerId(peers[0].rpartition("/p2p/")[2])
    async with (
        on_the_network(folder, peers) as network,
        open_library(folder / "library", run=RUN, learner_key=public_key_of(owner)) as library,
        trio.open_nursery() as nursery,
    ):
        traffic = Traffic()
        ChunkServer(network, library.store, traffic)
        sync = PolicySync(
            network,
            library,
            learner=owner,
            holders=network.connected_peers,
            rng=random.Random(network.peer),
            traffic=traffic,
        )
        await nursery.start(sync.run)
        await trio.sleep(1.0)  # until gossip has a mesh
        cpu_s = time.process_time()
        say(address=network.addresses()[0])
        await sync.next_version(None)
        say(held_unix_s=time.time())
        await trio.to_thread.run_sync(sys.stdin.readline)
        say(
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            cpu_s=time.process_time() - cpu_s,
        )
        nursery.cancel_scope.cancel()


def write_model(folder: Path, size_bytes: int) -> None:
    """Write a snapshot of random bytes; what they mean is of no interest here."""
    folder.mkdir()
    rng = random.Random(0)
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        for left in range(size_bytes, 0, -1_000_000):
            file.write(rng.randbytes(min(left, 1_000_000)))


def say(**figures: str | float) -> None:
    """Tell the parent."""
    print(msgspec.json.encode(figures).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
