"""Whom a node asks for chunks, and whom it dials."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import trio
from trio.testing import MockClock

from echo2swarm.network.addresses import group_by_peer
from node.membership.neighbours import CONNECT_S, Neighbours
from protocols.heartbeat import Dial, PeerAddresses
from tests.fakes.network.memory import MemoryHub
from tests.fakes.network.memory_node import MemoryNetwork
from tests.node.fakes import make_key


@dataclass
class World:
    hub: MemoryHub
    me: MemoryNetwork
    others: Sequence[MemoryNetwork]
    """The first is the learner."""
    neighbours: Neighbours

    def name(self, *numbers: int) -> None:
        self.neighbours.named(
            tuple(PeerAddresses(self.others[i].peer, self.others[i].addresses()) for i in numbers)
        )

    async def connect(self, number: int) -> None:
        (info,) = group_by_peer(self.others[number].addresses())
        await self.me.connect(info)

    def holders(self) -> set[int]:
        holders = self.neighbours.holders()
        return {i for i, other in enumerate(self.others) if other.peer in holders}

    def dials(self) -> dict[int, Dial]:
        dials = self.neighbours.dials
        return {i: dials[o.peer] for i, o in enumerate(self.others) if o.peer in dials}


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    hub = MemoryHub(0)
    async with AsyncExitStack() as stack:
        me = await stack.enter_async_context(hub.network(make_key(1)))
        others = [await stack.enter_async_context(hub.network(make_key(2 + i))) for i in range(4)]
        neighbours = Neighbours(me, learner=others[0].peer, rng=random.Random(0))
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(neighbours.run)
        yield World(hub, me, others, neighbours)
        nursery.cancel_scope.cancel()


async def test_before_any_neighbour_is_named_whoever_is_connected_is_asked(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        await world.connect(3)

        assert world.holders() == {0, 3}


async def test_named_neighbours_are_dialled_and_asked_instead_of_others(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        await world.connect(3)
        world.name(1, 2)
        await trio.sleep(5)

        assert world.holders() == {0, 1, 2}
        assert world.dials() == {1: Dial.REACHED, 2: Dial.REACHED}
        assert world.others[3].peer in world.me.connected_peers()


async def test_who_is_not_named_any_more_stays_connected_and_is_not_asked(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        world.name(1, 2)
        await trio.sleep(5)
        world.name(2)
        await trio.sleep(5)

        assert world.holders() == {0, 2}
        assert world.others[1].peer in world.me.connected_peers()
        assert world.dials() == {2: Dial.REACHED}


async def test_while_no_named_neighbour_is_connected_others_are_better_than_nobody(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        await world.connect(3)
        world.hub.kill(world.others[1].peer)
        world.name(1)
        await trio.sleep(5)

        assert world.holders() == {0, 3}
        assert world.dials() == {1: Dial.FAILED}


async def test_who_was_reached_once_and_is_not_any_more_is_told_of(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        world.name(1)
        await trio.sleep(5)
        assert world.dials() == {1: Dial.REACHED}
        world.hub.kill(world.others[1].peer)
        await trio.sleep(30)

        assert world.dials() == {1: Dial.FAILED}


async def test_who_dials_us_is_asked_though_we_cannot_dial_it(autojump_clock: MockClock) -> None:
    async with open_world() as world:
        nowhere = f"/ip4/10.77.77.77/tcp/1/p2p/{world.others[1].peer}"
        world.neighbours.named((PeerAddresses(world.others[1].peer, (nowhere,)),))
        await trio.sleep(2 * CONNECT_S)
        assert world.dials() == {1: Dial.FAILED}
        (info,) = group_by_peer(world.me.addresses())
        await world.others[1].connect(info)

        assert world.holders() == {0, 1}


async def test_a_neighbour_without_an_address_is_waited_for(autojump_clock: MockClock) -> None:
    async with open_world() as world:
        world.neighbours.named((PeerAddresses(world.others[1].peer, ()),))
        await trio.sleep(100)
        assert world.dials() == {}
        (info,) = group_by_peer(world.me.addresses())
        await world.others[1].connect(info)

        assert world.holders() == {0, 1}
