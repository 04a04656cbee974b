"""A peer that ignores the windows of yamux, and sends what nobody has asked for."""

from typing import Final

import trio
import trio.lowlevel

from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import frame
from protocols import rollouts

NUM_BYTES: Final = 120_000_000
"""Per connection: nearly what one may hold unread, and 400 windows."""
BLOCK: Final = bytes(60_000)


async def run(scene: Scene) -> None:
    """Announce a frame of the greatest length, then send without end, and keep it all there."""

    async def flood(index: int) -> None:
        async with scene.connection(index) as wire:
            announced = frame(bytes(rollouts.MAX_REQUEST_BYTES))[:4]
            stream = await wire.open_stream(rollouts.PROTOCOL_ID, announced)
            sent = 0
            while sent < NUM_BYTES and not wire.is_closed:
                await stream.send(BLOCK)
                sent += len(BLOCK)
                scene.notes["MB"] += sent % 1_000_000 < len(BLOCK)
                scene.tried()
                await trio.lowlevel.checkpoint()
            await wire.wait_closed()
            scene.notes["cut off"] += 1

    await scene.crowd(flood)
