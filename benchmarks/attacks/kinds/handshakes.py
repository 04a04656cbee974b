"""Connections whose handshake fails: port scanners, browsers, and peers that fall silent."""

from typing import Final

import trio

from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import MULTISTREAM, line, open_tcp

_LIBP2P: Final = (
    b"GET / HTTP/1.0\r\n\r\n",
    line(MULTISTREAM),
    line(MULTISTREAM) + line("/noise"),
    line(MULTISTREAM) + line("/noise") + bytes(200),
)
_TLS: Final = b"\x16\x03\x01\x02\x00\x01" + bytes(60)
FIRST: Final = (*_LIBP2P, *_LIBP2P, _TLS, b"")
"""What each of them sends before it closes, in turn."""
LINGER_S: Final = 0.05


async def run(scene: Scene) -> None:
    """Make connections at the given pace, each of which ends within its handshake."""

    async def botch(number: int) -> None:
        try:
            stream = await open_tcp(scene.learner, scene.source(number))
        except OSError:
            scene.notes["refused"] += 1
            return
        async with stream:
            try:
                await stream.send_all(FIRST[number % len(FIRST)])
            except trio.BrokenResourceError:
                scene.notes["reset"] += 1
            await trio.sleep(LINGER_S)

    async with trio.open_nursery() as nursery:
        while True:
            await scene.turn()
            nursery.start_soon(botch, scene.num_tried)
