"""Streams that are opened and never say which protocol they are for."""

from typing import Final

from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import MULTISTREAM, line

STREAMS_PER_IDENTITY: Final = 3000


async def run(scene: Scene) -> None:
    """Open thousands of them on each connection; every other one says half of a greeting."""

    async def act(index: int) -> None:
        async with scene.connection(index) as wire:
            for number in range(STREAMS_PER_IDENTITY):
                if wire.is_closed:
                    break
                await scene.turn()
                stream = await wire.open_stream()
                if number % 2:
                    await stream.send(line(MULTISTREAM)[:7])
                stream.forget()
            await wire.wait_closed()
            scene.notes["cut off"] += 1

    await scene.crowd(act)
