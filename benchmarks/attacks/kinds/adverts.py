"""Members who say of themselves that they live where they don't."""

from collections.abc import Sequence
from typing import Final

import trio

from benchmarks.attacks.member import open_member
from benchmarks.attacks.scene import Scene

BEAT_S: Final = 2.0
NUM_ADDRESSES: Final = 16
NUM_HOSTS: Final = 240


async def at_victim(scene: Scene) -> None:
    """Join and report, with an advert that names the victim: neighbours are told to dial it."""
    await _join(scene, [scene.order.victim])


async def at_tarpit(scene: Scene) -> None:
    """Join and report, with adverts that name addresses at which nobody ever says a word."""
    (listener,) = await trio.open_tcp_listeners(0, host="0.0.0.0", backlog=1024)  # noqa: S104
    port = listener.socket.getsockname()[1]

    async def say_nothing(stream: trio.SocketStream) -> None:
        scene.notes["dialled"] += 1
        async with stream:
            await trio.sleep(scene.order.seconds)

    hosts = [f"/ip4/127.{200 + i % 50}.{i // 50}.1/tcp/{port}" for i in range(NUM_HOSTS)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, say_nothing, [listener])
        await _join(scene, hosts)


async def _join(scene: Scene, addresses: Sequence[str]) -> None:
    async def act(index: int) -> None:
        mine = [
            addresses[(index * NUM_ADDRESSES + i) % len(addresses)]
            for i in range(min(NUM_ADDRESSES, len(addresses)))
        ]
        async with open_member(scene, index) as member:
            while True:
                await member.heartbeat(addresses=mine)
                scene.tried()
                await trio.sleep(BEAT_S)

    await scene.crowd(act)
