"""Requests for the status of the run, as fast as they are answered, up to a pace."""

import msgspec

from benchmarks.attacks.scene import Scene
from protocols import status
from protocols.status import StatusRequest

WITHIN_S = 15.0


async def run(scene: Scene) -> None:
    """Ask at the given pace."""
    request = msgspec.msgpack.encode(StatusRequest(run_id=scene.ticket.run_id))

    async def act(index: int) -> None:
        async with scene.connection(index) as wire:
            while True:
                await scene.turn()
                reply = await wire.call(status.PROTOCOL_ID, request, within_s=WITHIN_S)
                scene.notes["answered"] += 1
                scene.notes["kB"] += len(reply) // 1000

    await scene.crowd(act)
