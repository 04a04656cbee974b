"""Streams of a protocol on which nothing is ever sent, as many as are allowed."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import Wire
from protocols import bulk, chunks, heartbeat, leases, manifest, rollouts, status

PROTOCOLS: Final = {
    "heartbeat": heartbeat.PROTOCOL_ID,
    "lease": leases.PROTOCOL_ID,
    "rollouts": rollouts.PROTOCOL_ID,
    "status": status.PROTOCOL_ID,
    "manifest": manifest.PROTOCOL_ID,
    "chunks": chunks.PROTOCOL_ID,
    "bulk": bulk.PROTOCOL_ID,
}
STREAMS_PER_IDENTITY: Final = 8
AGAIN_S: Final = 0.3


def on(protocol: str) -> Callable[[Scene], Awaitable[None]]:
    """Return the attack on one protocol."""
    return partial(_hold, (PROTOCOLS[protocol],))


async def on_all(scene: Scene) -> None:
    """Hold streams of all protocols at once."""
    await _hold(tuple(PROTOCOLS.values()), scene)


async def _hold(protocols: tuple[str, ...], scene: Scene) -> None:
    async def hold(wire: Wire, protocol: str) -> None:
        while not wire.is_closed:
            stream = await wire.open_stream(protocol)
            scene.tried()
            await stream.wait_ended()
            stream.forget()
            await trio.sleep(AGAIN_S)

    async def act(index: int) -> None:
        async with scene.connection(index) as wire, trio.open_nursery() as nursery:
            for protocol in protocols:
                for _ in range(STREAMS_PER_IDENTITY):
                    nursery.start_soon(hold, wire, protocol)

    await scene.crowd(act)
