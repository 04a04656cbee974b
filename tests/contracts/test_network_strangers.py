"""What every adapter promises of strangers: what they begin and break off takes nothing."""

from collections.abc import Iterable
from contextlib import AsyncExitStack

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.system.errors import NetworkError
from protocols.ids import PeerId, peer_id_of
from tests.contracts.network_worlds import (
    PATIENCE_S,
    Libp2pWorld,
    MemoryWorld,
    World,
    eventually,
    info_of,
)
from tests.contracts.test_network import ask, serve_echo

NUM_BROKEN = 2_000
AT_ONCE = 60


@pytest.fixture(params=[MemoryWorld, Libp2pWorld], ids=["memory", "libp2p"])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.param()
    return made


def stranger() -> PeerId:
    return peer_id_of(Ed25519PrivateKey.generate().public_key())


async def assert_connects_both_ways(network: Network, world: World) -> None:
    """Let one peer dial ``network``, and have another one dialled."""
    async with world.join(2) as caller, world.join(3) as called:
        await caller.connect(info_of(network), timeout_s=PATIENCE_S)
        await network.connect(info_of(called), timeout_s=PATIENCE_S)

        assert {caller.peer, called.peer} <= network.connected_peers()


async def test_handshakes_that_break_off_use_up_no_connections(world: World) -> None:
    async with world.join(1, max_connections=256) as victim:
        await world.break_off(victim, NUM_BROKEN)

        await assert_connects_both_ways(victim, world)


async def test_dials_that_time_out_use_up_no_connections(world: World) -> None:
    limit = trio.CapacityLimiter(AT_ONCE)
    failures: list[str] = []

    async with (
        world.join(1) as victim,
        world.silence() as where,
    ):

        async def dial() -> None:
            async with limit:
                try:
                    await victim.connect(
                        PeerInfo(peer=stranger(), addresses=(where,)), timeout_s=0.2
                    )
                except NetworkError as exc:
                    failures.append(str(exc))

        async with trio.open_nursery() as dials:
            for _ in range(NUM_BROKEN):
                dials.start_soon(dial)
        assert len(failures) == NUM_BROKEN
        assert [f for f in failures if "timed out" not in f] == []

        await assert_connects_both_ways(victim, world)


# More who want a connection than there may be.


async def take_all(
    stack: AsyncExitStack, world: World, victim: Network, numbers: Iterable[int]
) -> None:
    """Let strangers connect to ``victim``, whether they stay connected or not."""
    for number in numbers:
        stranger = await stack.enter_async_context(world.join(number))
        await stranger.connect(info_of(victim))


async def test_a_newcomer_gets_in_while_strangers_hold_every_connection(world: World) -> None:
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(world.join(1, max_connections=16))
        serve_echo(victim)
        await take_all(stack, world, victim, range(10, 26))
        newcomer = await stack.enter_async_context(world.join(2))

        await newcomer.connect(info_of(victim), timeout_s=5)

        assert await ask(newcomer, victim.peer, b"hello") == b"hello"
        assert len(victim.connected_peers()) <= 16


async def test_whom_the_application_vouches_for_stays_connected_in_a_crowd(world: World) -> None:
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(world.join(1, max_connections=16))
        serve_echo(victim)
        known = await stack.enter_async_context(world.join(2))
        unknown = await stack.enter_async_context(world.join(3))
        await known.connect(info_of(victim))
        await unknown.connect(info_of(victim))
        assert await ask(known, victim.peer, b"before") == b"before"

        victim.protect({known.peer}.__contains__)
        await take_all(stack, world, victim, range(10, 40))

        async def is_gone() -> bool:
            return victim.peer not in unknown.connected_peers()

        await eventually(is_gone)
        assert known.peer in victim.connected_peers()
        assert await ask(known, victim.peer, b"after") == b"after"


async def test_whom_the_application_vouches_for_comes_back_into_a_crowd(world: World) -> None:
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(world.join(1, max_connections=16))
        known = await stack.enter_async_context(world.join(2))
        victim.protect({known.peer}.__contains__)
        await take_all(stack, world, victim, range(10, 30))

        await known.connect(info_of(victim), timeout_s=5)
        await take_all(stack, world, victim, range(30, 50))

        assert known.peer in victim.connected_peers()
