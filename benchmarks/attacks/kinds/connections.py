"""Whole connections that are kept open and do nothing."""

from typing import Final

import trio

from benchmarks.attacks.scene import Scene
from echo2swarm.system.errors import NetworkError

PARALLEL: Final = 8


async def run(scene: Scene) -> None:
    """Open as many connections as planned, each of an identity of its own, and keep them.

    Who is turned away or cut off comes again.
    """
    at_once = trio.CapacityLimiter(PARALLEL)

    async def keep(number: int) -> None:
        while True:
            await at_once.acquire_on_behalf_of(number)
            is_waiting = True
            try:
                scene.tried()
                async with scene.connection(number) as wire:
                    at_once.release_on_behalf_of(number)
                    is_waiting = False
                    scene.notes["connected"] += 1
                    await wire.wait_closed()
                    scene.notes["cut off"] += 1
            except* (NetworkError, OSError):
                scene.notes["turned away"] += 1
            finally:
                if is_waiting:
                    at_once.release_on_behalf_of(number)
            await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        for number in range(scene.order.num_identities):
            nursery.start_soon(keep, number)
