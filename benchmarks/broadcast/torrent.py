"""The same case with libtorrent, so that there is something to be faster than."""

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import trio

from benchmarks.broadcast.cases import Case
from benchmarks.broadcast.children import Child
from benchmarks.wan import Wan, open_wan

START_S: Final = 60.0
PATIENCE: Final = 6.0
_MODULE: Final = "benchmarks.broadcast.torrent_peer"


def is_installed() -> bool:
    """Return whether libtorrent is here to be compared with."""
    return find_spec("libtorrent") is not None


async def run_torrent(case: Case, *, is_urgent: bool = False) -> float:
    """Return how long the last peer waits for a payload of the case's size.

    Raises:
        ChildError: a process died, or the payload did not arrive in good time.
        WanError: the links cannot be emulated here.
    """
    with (
        tempfile.TemporaryDirectory(prefix="echo2-torrent-") as folder,
        open_wan(case.links) as wan,
    ):
        async with trio.open_nursery() as nursery:
            last_s = await _measure(case, wan, Path(folder), nursery, is_urgent)
            nursery.cancel_scope.cancel()
    return last_s


async def _measure(
    case: Case, wan: Wan, folder: Path, nursery: trio.Nursery, is_urgent: bool
) -> float:
    torrent = folder / "payload.torrent"
    children: list[Child] = []
    for host in range(len(case.links)):
        own = folder / f"host{host}"
        own.mkdir()
        child = Child(f"libtorrent{host}", folder / f"host{host}.log", is_urgent=is_urgent)
        options = [f"--bytes={case.size_bytes}"] if host == 0 else []
        arguments = ["-m", _MODULE, str(own), wan.address(host), str(torrent), *options]
        await nursery.start(child.run, wan, host, arguments)
        children.append(child)
        if host == 0:
            await child.hear("ready", within_s=START_S)  # It makes the torrent of the others.
    for child in children:
        await child.hear("ready", within_s=START_S)
    peers = children[1:]
    for host, child in enumerate(peers, start=1):
        await child.tell("connect", to=[wan.address(other) for other in range(host)])
    start_s = [float((await child.hear("connected", within_s=START_S))["at_s"]) for child in peers]
    held = [await child.hear("held", within_s=PATIENCE * case.least_s + 10) for child in peers]
    return float(max(each["at_s"] for each in held)) - min(start_s)
