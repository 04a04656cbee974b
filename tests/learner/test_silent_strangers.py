"""Training goes on, and newcomers get in, while many identities hold silent streams."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock

from echo2swarm.network.addresses import group_by_peer
from echo2swarm.system.errors import NetworkError
from protocols import heartbeat, leases, probe, rollouts, status
from tests.fakes.network.memory_node import MemoryNetwork
from tests.learner.swarm_world import World, config, open_world

NUM_STRANGERS = 60
STREAMS_EACH = 5
PROTOCOLS = [
    heartbeat.PROTOCOL_ID,
    leases.PROTOCOL_ID,
    rollouts.PROTOCOL_ID,
    status.PROTOCOL_ID,
    probe.PROTOCOL_ID,
]


async def hold(network: MemoryNetwork, world: World, protocol: str, request: bytes | None) -> None:
    while True:
        with suppress(NetworkError):
            async with network.open_stream(
                world.network.peer, protocol, max_frame_bytes=1000
            ) as stream:
                if request is not None:
                    await stream.send(request)
                await stream.receive()
        await trio.sleep(1.0)


async def stranger(world: World, number: int, protocol: str, request: bytes | None) -> None:
    key = Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))
    async with world.hub.network(key) as network, trio.open_nursery() as nursery:
        (learner,) = group_by_peer(world.network.addresses())
        await network.connect(learner)
        for _ in range(STREAMS_EACH):
            nursery.start_soon(hold, network, world, protocol, request)


async def wait_for(condition: Callable[[], bool], *, within_s: float) -> None:
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_silent_streams_of_sixty_identities_stop_nothing(
    tmp_path: Path, autojump_clock: MockClock, protocol: str
) -> None:
    async with open_world(tmp_path, config(num_steps=1000), train_s=1.0) as world:
        node = world.start_node(1, generate_s=0.5)
        await wait_for(lambda: world.trainer.step >= 5, within_s=60)
        before_s, before = trio.current_time(), world.trainer.step
        await trio.sleep(10)
        undisturbed = (world.trainer.step - before) / (trio.current_time() - before_s)

        for number in range(1000, 1000 + NUM_STRANGERS):
            world.nursery.start_soon(stranger, world, number, protocol, None)
        await trio.sleep(2)
        before_s, before = trio.current_time(), world.trainer.step
        await trio.sleep(10)
        attacked = (world.trainer.step - before) / (trio.current_time() - before_s)

        assert attacked >= 0.9 * undisturbed
        newcomer = world.start_node(2, generate_s=0.5)
        with trio.fail_after(5):
            await newcomer.joined.wait()
        await wait_for(lambda: bool(newcomer.leases or node.was_dismissed), within_s=30)
        with trio.fail_after(5):
            await newcomer.status()
