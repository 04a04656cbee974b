"""Strangers are served at a pace, by turns."""

import trio
import trio.testing

from echo2swarm.network.turns import FairQueue, Turns
from protocols.ids import PeerId

GREEDY, NEWCOMER = PeerId("greedy"), PeerId("newcomer")


async def come(turns: Turns, peer: PeerId, served: list[PeerId]) -> None:
    await turns.wait(peer)
    served.append(peer)


async def test_a_newcomer_goes_before_anothers_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns, served = Turns(per_s=1.0, burst=1), list[PeerId]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        for _ in range(50):
            nursery.start_soon(come, turns, GREEDY, served)
        await trio.sleep(5.5)
        num_before = len(served)
        nursery.start_soon(come, turns, NEWCOMER, served)
        await trio.sleep(2.0)

        assert NEWCOMER in served[num_before : num_before + 2]
        assert len(served) < 10
        nursery.cancel_scope.cancel()


async def test_all_strangers_together_are_served_at_one_pace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns, served = Turns(per_s=10.0, burst=5), list[PeerId]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        for number in range(200):
            nursery.start_soon(come, turns, PeerId(f"peer-{number}"), served)
        await trio.sleep(10)

        assert 100 <= len(served) <= 106
        nursery.cancel_scope.cancel()


async def test_nobody_waits_while_few_come(autojump_clock: trio.testing.MockClock) -> None:
    turns, served = Turns(per_s=10.0, burst=5), list[PeerId]()
    for _ in range(20):
        await come(turns, NEWCOMER, served)
        await trio.sleep(0.2)

    assert len(served) == 20


async def test_who_gives_up_takes_nobodys_turn(autojump_clock: trio.testing.MockClock) -> None:
    turns, served = Turns(per_s=1.0, burst=1), list[PeerId]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await turns.wait(NEWCOMER)
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as impatient:
                for number in range(30):
                    impatient.start_soon(come, turns, PeerId(f"peer-{number}"), served)
        nursery.start_soon(come, turns, NEWCOMER, served)
        await trio.sleep(2.0)

        assert served == [NEWCOMER]
        nursery.cancel_scope.cancel()


def test_nothing_is_kept_of_who_was_served() -> None:
    queue = FairQueue()
    for number in range(100):
        queue.add(PeerId(f"peer-{number}"), trio.Event())
    while queue.pop() is not None:
        pass

    assert not len(queue)
    assert not queue._last_of
    assert not queue._gone


def test_no_more_is_kept_than_wait_however_many_give_up() -> None:
    queue, waiting = FairQueue(), trio.Event()
    queue.add(NEWCOMER, waiting)
    for _ in range(1000):
        event = trio.Event()
        queue.add(GREEDY, event)
        queue.forget(event)

    assert len(queue) == 1
    assert len(queue._waiting) < 5
    assert queue.pop() is waiting
    assert queue.pop() is None
