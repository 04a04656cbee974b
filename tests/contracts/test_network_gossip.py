"""Gossip that is too long or of a stranger is refused unread, and its bringer shut out."""

import trio

from echo2swarm.network.base import Network
from protocols.gossip import Validation
from protocols.ids import PeerId
from tests.contracts.network_worlds import World, eventually, info_of

TOPIC = "t"


def accept(_author: PeerId, _data: bytes) -> Validation:
    return Validation.ACCEPT


async def until_it_flows(source: Network, sink: trio.MemoryReceiveChannel[object]) -> None:
    with trio.fail_after(60):
        while True:
            await source.publish(TOPIC, b"probe")
            with trio.move_on_after(0.2):
                await sink.receive()
                return


async def test_what_is_too_long_or_of_a_stranger_is_neither_judged_nor_passed_on(
    world: World,
) -> None:
    judged: list[bytes] = []
    at_c: list[bytes] = []

    def note(_author: PeerId, data: bytes) -> Validation:
        judged.append(data)
        return Validation.ACCEPT

    async with (
        world.join(1) as learner,
        world.join(2) as b,
        world.join(3) as c,
        world.join(4) as stranger,
    ):
        for one, other in ((learner, b), (b, c), (stranger, b)):
            await one.connect(info_of(other))
        async with (
            b.subscribe(TOPIC, note, max_bytes=1000, authors=(learner.peer,)) as to_b,
            c.subscribe(TOPIC, accept) as to_c,
            stranger.subscribe(TOPIC, accept) as to_stranger,
            trio.open_nursery() as nursery,
        ):

            async def collect() -> None:
                async for _author, data in to_c:
                    at_c.append(data)

            await until_it_flows(learner, to_c)
            await until_it_flows(learner, to_stranger)
            nursery.start_soon(collect)
            await stranger.publish(TOPIC, b"forged")
            await learner.publish(TOPIC, bytes(1001))
            await learner.publish(TOPIC, b"news")

            async def has_news() -> bool:
                return b"news" in judged and b"news" in at_c

            await eventually(has_news)
            assert {*judged, *at_c} == {b"probe", b"news"}
            nursery.cancel_scope.cancel()
    assert to_b is not None


async def test_who_keeps_bringing_what_is_refused_is_shut_out_and_others_are_heard(
    world: World,
) -> None:
    judged: list[bytes] = []

    def strict(_author: PeerId, data: bytes) -> Validation:
        judged.append(data)
        return Validation.REJECT if data.startswith(b"forged") else Validation.ACCEPT

    async with world.join(1) as learner, world.join(2) as b, world.join(3) as stranger:
        for one in (learner, stranger):
            await one.connect(info_of(b))
        async with (
            b.subscribe(TOPIC, strict) as to_b,
            stranger.subscribe(TOPIC, accept),
        ):
            await until_it_flows(learner, to_b)
            await until_it_flows(stranger, to_b)
            for number in range(30):
                await stranger.publish(TOPIC, b"forged %d" % number)
                await trio.sleep(0.02)
            await learner.publish(TOPIC, b"news")

            async def has_news() -> bool:
                return b"news" in judged

            await eventually(has_news)
    num_forged = sum(data.startswith(b"forged") for data in judged)
    assert 1 <= num_forged <= 10
