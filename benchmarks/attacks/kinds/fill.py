"""Thousands of identities, each of which reports once, with the longest texts there are."""

import trio

from benchmarks.attacks.member import open_member
from benchmarks.attacks.scene import Scene
from echo2swarm.errors import NetworkError
from protocols.activation import NodeState
from protocols.errors import RemoteProtocolError

PARALLEL = 24
TEXT = "\u4e2d" * 120
"""Characters of three bytes, up to the limit."""


async def run(scene: Scene) -> None:
    """Register one new identity after the other at the given pace."""

    async def register(number: int) -> None:
        try:
            async with open_member(scene, number) as member:
                await member.heartbeat(state=NodeState.STANDBY, text=TEXT)
                scene.notes["registered"] += 1
        except* (NetworkError, RemoteProtocolError, OSError):
            scene.notes["turned away"] += 1

    async def keep_going() -> None:
        while True:
            await scene.turn()
            await register(scene.num_tried)

    async with trio.open_nursery() as nursery:
        for _ in range(PARALLEL):
            nursery.start_soon(keep_going)
