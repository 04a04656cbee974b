"""One libtorrent client: the baseline. Run by :mod:`benchmarks.broadcast.torrent`.

    python -m benchmarks.broadcast.torrent_peer FOLDER 10.77.0.2 TORRENT_FILE [--bytes N]

Its settings are those under which it was fastest here: every peer may be uploaded
to at once (its default of 8 slots is a quarter slower), nothing is encrypted, TCP only.
"""

import argparse
import random
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.broadcast.wire import commands, say

libtorrent: Any = import_module("libtorrent")  # its types are wrong about settings

PORT: Final = 6881
POLL_S: Final = 0.05
FILE_NAME: Final = "payload"


def main() -> None:
    """Seed or fetch until the parent closes our input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("ip")
    parser.add_argument("torrent", type=Path)
    parser.add_argument("--bytes", type=int, help="seed so many random bytes")
    args = parser.parse_args()
    if args.bytes is not None:
        _make_torrent(args.folder / FILE_NAME, args.bytes, args.torrent)
    trio.run(_take_part, args.folder, args.ip, args.torrent, args.bytes is not None)


async def _take_part(folder: Path, ip: str, torrent: Path, is_seed: bool) -> None:
    session = libtorrent.session(_settings(ip))
    params = libtorrent.add_torrent_params()
    params.ti = libtorrent.torrent_info(str(torrent))
    params.save_path = str(folder)
    flags = libtorrent.torrent_flags
    params.flags &= ~(flags.auto_managed | flags.paused)
    if is_seed:
        params.flags |= flags.seed_mode
    handle = session.add_torrent(params)
    say("ready")
    async with trio.open_nursery() as nursery:
        async for command in commands():
            if command["do"] == "connect":
                # Connections are part of its time: a seed sends as soon as it is connected.
                say("connected", at_s=time.monotonic())
                for other in command["to"]:
                    handle.connect_peer((other, PORT))
                if not is_seed:
                    nursery.start_soon(_tell_held, handle)
            elif command["do"] == "report":
                say("report", payload_sent_bytes=handle.status().total_payload_upload)
        nursery.cancel_scope.cancel()


async def _tell_held(handle: Any) -> None:  # noqa: ANN401 - the library has no types
    while not handle.status().is_seeding:  # noqa: ASYNC110 - nobody tells
        await trio.sleep(POLL_S)
    say("held", at_s=time.monotonic())


def _settings(ip: str) -> dict[str, Any]:
    return {
        "listen_interfaces": f"{ip}:{PORT}",
        "outgoing_interfaces": ip,
        "enable_dht": False,
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_outgoing_utp": False,
        "enable_incoming_utp": False,
        "alert_mask": 0,
        "unchoke_slots_limit": -1,
        "max_out_request_queue": 64,
        "request_queue_time": 1,
        "connection_speed": 100,
        "torrent_connect_boost": 50,
    }


def _make_torrent(payload: Path, size_bytes: int, torrent: Path) -> None:
    rng = random.Random(0)
    with payload.open("wb") as file:
        for left in range(size_bytes, 0, -1_000_000):
            file.write(rng.randbytes(min(left, 1_000_000)))
    files = libtorrent.file_storage()
    libtorrent.add_files(files, str(payload))
    maker = libtorrent.create_torrent(files)
    libtorrent.set_piece_hashes(maker, str(payload.parent))
    torrent.write_bytes(libtorrent.bencode(maker.generate()))


if __name__ == "__main__":
    main()
