"""One pair on loopback: how fast verified bytes go from store to store.

A holder and a fetcher, a process each, against two plain carriers in the same
minutes: a TCP socket, and a trio TLS stream, which only move bytes from memory to
memory::

    python -m benchmarks.bulk --quick

"Verified" means fetched with :func:`~echo2swarm.weights.transfer.fetch.fetch_payload`: hashes
checked, chunks written, offered to others. Meanwhile, a task in either process
sleeps for 5 ms again and again, and notes how late it wakes.
"""

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import trio

from benchmarks.harness import Mark, Outcome, column, finish, ratio
from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.bulk import tls
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.system.identity import load_or_create
from echo2swarm.weights.store.store import open_store
from echo2swarm.weights.transfer.fetch import FetchProgress, fetch_payload
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.stream_pool import StreamPool
from echo2swarm.weights.transfer.traffic import Traffic
from protocols.manifest import PayloadRef

LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
QUICK_BYTES: Final = 256_000_000
FULL_BYTES: Final = 2_000_000_000
PIECE_BYTES: Final = 1024 * 1024
BLOCK_BYTES: Final = 16_000_000
TICK_S: Final = 0.005
MIN_OF_TRIO_TLS: Final = 0.5
MAX_LATE_S: Final = 0.020
MAX_GROWTH_BYTES: Final = 300_000_000

PLAIN: Final = ("plain TCP", "trio TLS")
"""Carriers for comparison: nothing is read from disk, checked or written."""
OURS: Final = ("bulk", "libp2p")
CARRIERS: Final = PLAIN + OURS


def main() -> int:
    """Run the benchmark, or be one of its processes."""
    parser = argparse.ArgumentParser(description="Measure how fast one pair moves verified bytes.")
    parser.add_argument("--quick", action="store_true", help="256 MB instead of 2 GB")
    parser.add_argument("--mb", type=float, help="payload in MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--carriers", nargs="+", choices=CARRIERS, default=CARRIERS)
    parser.add_argument("--folder", type=Path, help="where the stores are (default: /dev/shm)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=("sender", "receiver"), help=argparse.SUPPRESS)
    parser.add_argument("--carrier", choices=CARRIERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size_bytes = int(args.mb * 1e6) if args.mb else QUICK_BYTES if args.quick else FULL_BYTES
    if args.child:  # its output is for the parent
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        trio.run(CHILDREN[args.carrier, args.child], args.folder, size_bytes)
        return 0
    return measure(
        args.carriers, size_bytes, args.rounds, args.folder or _default_folder(), args.json
    )


def _default_folder() -> Path | None:
    """Return a folder in memory if there is one: how fast a disk is, is no question here."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of ours is made in it
    return memory if memory.is_dir() else None


def measure(
    carriers: Sequence[str],
    size_bytes: int,
    num_rounds: int,
    folder: Path | None,
    json_path: Path | None,
) -> int:
    """Let each carrier move the payload in turn, as often as there are rounds."""
    records: dict[str, list[dict[str, Any]]] = {carrier: [] for carrier in carriers}
    with tempfile.TemporaryDirectory(dir=folder) as root:
        payload = Path(root) / "payload.bin"
        write_payload(payload, size_bytes)
        for number in range(num_rounds):
            for carrier in carriers:
                place = Path(root) / f"{number}"
                place.mkdir()
                records[carrier].append(one_transfer(carrier, place, size_bytes))
                shutil.rmtree(place)
    return finish(_outcome(records, size_bytes, num_rounds), json_path=json_path)


def one_transfer(carrier: str, folder: Path, size_bytes: int) -> dict[str, Any]:
    """Start both processes; return the figures of the transfer."""
    with ExitStack() as stack:
        sender = stack.enter_context(Child("sender", carrier, folder, size_bytes))
        receiver = stack.enter_context(Child("receiver", carrier, folder, size_bytes))
        receiver.tell(sender.read())
        got = receiver.read()
        sender.tell({})
        sent = sender.read()
    return {
        "mb_per_s": got["num_bytes"] / 1e6 / got["seconds"],
        "seconds": got["seconds"],
        "late_ms": 1e3 * max(got["late_s"], sent["late_s"]),
        "growth_mb": max(got["growth_bytes"], sent["growth_bytes"]) / 1e6,
        "received": got,
        "sent": sent,
    }


def _outcome(records: dict[str, list[dict[str, Any]]], size_bytes: int, num_rounds: int) -> Outcome:
    def median(carrier: str, name: str) -> float:
        return statistics.median(column(records[carrier], name))

    speeds = {carrier: median(carrier, "mb_per_s") for carrier in records}
    base = speeds.get("trio TLS", 0.0)
    rows = tuple(
        (
            carrier,
            speeds[carrier],
            ratio(speeds[carrier], base) if base else "-",
            median(carrier, "late_ms") if carrier in OURS else "-",
            max(column(records[carrier], "growth_mb")),
            statistics.median(r["received"]["cpu_s"] for r in records[carrier]),
            statistics.median(r["sent"]["cpu_s"] for r in records[carrier]),
        )
        for carrier in records
    )
    marks = []
    if "bulk" in records:
        growth_bytes = 1e6 * max(column(records["bulk"], "growth_mb"))
        late_s = median("bulk", "late_ms") / 1e3
        marks = [
            Mark(name="event loop late, s", value=late_s, at_most=MAX_LATE_S),
            Mark(name="memory growth, bytes", value=growth_bytes, at_most=MAX_GROWTH_BYTES),
        ]
        if base:
            of_tls = [
                ratio(ours, tls)
                for ours, tls in zip(
                    column(records["bulk"], "mb_per_s"),
                    column(records["trio TLS"], "mb_per_s"),
                    strict=True,
                )
            ]
            marks.append(
                Mark(
                    name="of a trio TLS stream",
                    value=statistics.median(of_tls),
                    at_least=MIN_OF_TRIO_TLS,
                )
            )
    return Outcome(
        name="bulk",
        what=(
            f"{size_bytes / 1e6:g} MB between two processes on loopback, median of {num_rounds}; "
            "bulk and libp2p: from store to store, hashes checked; the others: bytes only."
        ),
        columns=("carrier", "MB/s", "of trio TLS", "late ms", "growth MB", "CPU s in", "CPU s out"),
        rows=rows,
        marks=tuple(marks),
        figures=dict(records),
    )


class Child:
    """One of the two processes; it says JSON lines, and is told some."""

    def __init__(self, role: str, carrier: str, folder: Path, size_bytes: int) -> None:
        command = [sys.executable, "-m", "benchmarks.bulk", f"--child={role}"]
        self._log = folder / f"{role}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *command,
                    f"--carrier={carrier}",
                    f"--folder={folder}",
                    f"--mb={size_bytes / 1e6}",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
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
            raise RuntimeError(f"a process died:\n{self._log.read_text()}")
        return msgspec.json.decode(line, type=dict[str, Any])

    def tell(self, what: dict[str, Any]) -> None:
        """Send it one line."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")
        self._process.stdin.flush()


def say(**what: Any) -> None:  # noqa: ANN401 - whatever JSON can say
    """Tell the parent."""
    print(msgspec.json.encode(what).decode(), flush=True)


async def hear() -> dict[str, Any]:
    """Return what the parent says next."""
    return msgspec.json.decode(
        await trio.to_thread.run_sync(sys.stdin.buffer.readline), type=dict[str, Any]
    )


def write_payload(path: Path, size_bytes: int) -> None:
    """Write random bytes, the same ones again and again: to make more would take longer."""
    block = random.Random(0).randbytes(BLOCK_BYTES)
    with path.open("wb") as file:
        for left in range(size_bytes, 0, -BLOCK_BYTES):
            file.write(block[:left])


# What is watched in each process.


class Watch:
    """How late the event loop was, how much memory and processor time was used since."""

    def __init__(self) -> None:
        self.late_s = 0.0
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._rss_bytes = _memory_bytes("VmRSS")
        self._cpu_s = time.process_time()

    async def run(self) -> None:
        """Note how late each wake-up is."""
        while True:
            due_s = time.perf_counter() + TICK_S
            await trio.sleep(TICK_S)
            self.late_s = max(self.late_s, time.perf_counter() - due_s)

    def figures(self) -> dict[str, float]:
        """Return what was seen."""
        return {
            "late_s": self.late_s,
            "growth_bytes": _memory_bytes("VmHWM") - self._rss_bytes,
            "cpu_s": time.process_time() - self._cpu_s,
        }


def _memory_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc/self/status")


@asynccontextmanager
async def watching() -> AsyncIterator[Watch]:
    """Watch for the time of the context."""
    watch = Watch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        yield watch
        nursery.cancel_scope.cancel()


# Plain carriers.


async def plain_sender(folder: Path, size_bytes: int, *, is_tls: bool) -> None:
    """Send so many bytes to whoever connects."""
    data = random.Random(0).randbytes(PIECE_BYTES)
    is_over = trio.Event()
    context = tls.Certificate().accepting()

    async def serve(stream: trio.abc.Stream) -> None:
        if is_tls:
            stream = trio.SSLStream(stream, context, server_side=True)
        for left in range(size_bytes, 0, -PIECE_BYTES):
            await stream.send_all(data[:left])
        await stream.receive_some(1)
        is_over.set()

    async with watching() as watch, trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        say(port=listener.socket.getsockname()[1])
        await is_over.wait()
        await hear()
        say(**watch.figures())
        nursery.cancel_scope.cancel()


async def plain_receiver(folder: Path, size_bytes: int, *, is_tls: bool) -> None:
    """Receive so many bytes."""
    port = (await hear())["port"]
    async with watching() as watch:
        stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", port)
        if is_tls:
            stream = trio.SSLStream(stream, tls.dialling())
        num_bytes = len(await stream.receive_some(1))
        start_s = time.perf_counter()
        while num_bytes < size_bytes:
            num_bytes += len(await stream.receive_some(PIECE_BYTES))
        say(num_bytes=num_bytes, seconds=time.perf_counter() - start_s, **watch.figures())
        await stream.send_all(b"!")
        await hear()


# Ours.


async def our_sender(folder: Path, size_bytes: int, *, has_bulk: bool) -> None:
    """Serve the payload."""
    identity = load_or_create(folder / "sender.key")
    async with (
        open_network(identity, [LOOPBACK], has_bulk=has_bulk) as network,
        open_store(folder / "sender") as store,
    ):
        payload, _ = await store.adopt([folder.parent / "payload.bin"])
        ChunkServer(network, store, Traffic())
        async with watching() as watch:
            say(
                address=network.addresses()[0],
                ref=msgspec.msgpack.encode(payload.ref).hex(),
            )
            await hear()
            say(**watch.figures())


async def our_receiver(folder: Path, size_bytes: int, *, has_bulk: bool) -> None:
    """Fetch the payload."""
    told = await hear()
    (holder,) = group_by_peer([told["address"]])
    ref = msgspec.msgpack.decode(bytes.fromhex(told["ref"]), type=PayloadRef)
    first: list[tuple[float, int]] = []

    def note(progress: FetchProgress) -> None:
        if not first:
            first.append((time.perf_counter(), progress.held_bytes))

    identity = load_or_create(folder / "receiver.key")
    async with (
        open_network(identity, [LOOPBACK], has_bulk=has_bulk) as network,
        open_store(folder / "receiver") as store,
    ):
        await network.connect(holder)
        async with watching() as watch:
            await fetch_payload(
                StreamPool(network),
                store,
                ref,
                holders=lambda: [holder.peer],
                source=None,
                rng=random.Random(0),
                traffic=Traffic(),
                on_progress=note,
            )
            # From the first chunk on: how long it takes to connect is another question.
            start_s, start_bytes = first[0]
            say(
                num_bytes=ref.size_bytes - start_bytes,
                seconds=time.perf_counter() - start_s,
                **watch.figures(),
            )
            await hear()


def _children() -> dict[tuple[str, str], Callable[[Path, int], Any]]:
    def plain(is_tls: bool) -> tuple[Callable[[Path, int], Any], Callable[[Path, int], Any]]:
        return (
            lambda folder, size: plain_sender(folder, size, is_tls=is_tls),
            lambda folder, size: plain_receiver(folder, size, is_tls=is_tls),
        )

    def ours(has_bulk: bool) -> tuple[Callable[[Path, int], Any], Callable[[Path, int], Any]]:
        return (
            lambda folder, size: our_sender(folder, size, has_bulk=has_bulk),
            lambda folder, size: our_receiver(folder, size, has_bulk=has_bulk),
        )

    pairs = {
        "plain TCP": plain(False),
        "trio TLS": plain(True),
        "bulk": ours(True),
        "libp2p": ours(False),
    }
    return {
        (carrier, role): child
        for carrier, pair in pairs.items()
        for role, child in zip(("sender", "receiver"), pair, strict=True)
    }


CHILDREN: Final = _children()


if __name__ == "__main__":
    sys.exit(main())
