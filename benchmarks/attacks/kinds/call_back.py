"""Requests to be called back at an address that is somebody else's."""

import secrets
from typing import Final

import msgspec
import trio

from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import Wire
from echo2swarm.system.errors import NetworkError
from protocols import bulk, heartbeat
from protocols.bulk import CallBack, DialTarget

PER_IDENTITY: Final = 8
"""Requests of one identity at once."""
WITHIN_S: Final = 12.0


async def run(scene: Scene) -> None:
    """Ask learner and nodes at the given pace to dial the victim."""
    targets = (scene.learner, *scene.nodes)

    async def ask(wire: Wire) -> None:
        while not wire.is_closed:
            await scene.turn()
            entrance = DialTarget(
                certificate_sha256=secrets.token_bytes(32),
                token=secrets.token_bytes(bulk.TOKEN_BYTES),
                addresses=(scene.order.victim,),
            )
            request = CallBack(protocol=heartbeat.PROTOCOL_ID, entrance=entrance)
            try:
                reply = await wire.call(
                    bulk.PROTOCOL_ID, msgspec.msgpack.encode(request), within_s=WITHIN_S
                )
            except NetworkError:
                scene.notes["no answer"] += 1
            else:
                scene.notes[f"answered {reply[-12:]!r}"] += 1

    async def act(index: int) -> None:
        to = targets[index % len(targets)]
        async with scene.connection(index, to=to) as wire, trio.open_nursery() as nursery:
            for _ in range(PER_IDENTITY):
                nursery.start_soon(ask, wire)

    await scene.crowd(act)
