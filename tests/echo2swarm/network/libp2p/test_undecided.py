"""Connections that say nothing keep nobody else out."""

from contextlib import ExitStack

import trio
from trio.testing import MockClock

from echo2swarm.network.libp2p.undecided import Undecided

MAX_WAITING = 16


async def test_those_who_hold_most_lose_their_oldest_and_others_may_take_their_time() -> None:
    undecided = Undecided(MAX_WAITING)
    with ExitStack() as stack:
        honest = stack.enter_context(undecided.scope("198.51.100.7"))
        flood = [
            stack.enter_context(undecided.scope(f"203.0.113.{number % 250}"))
            for number in range(10 * MAX_WAITING)
        ]
        late = stack.enter_context(undecided.scope("192.0.2.1"))

        assert not honest.cancel_called
        assert not late.cancel_called
        kept = [scope for scope in flood if not scope.cancel_called]
        assert kept == flood[-(MAX_WAITING - 2) :]


async def test_who_has_decided_takes_up_no_room() -> None:
    undecided = Undecided(MAX_WAITING)
    with ExitStack() as stack:
        first = stack.enter_context(undecided.scope("203.0.113.1"))
        for _ in range(10 * MAX_WAITING):
            with undecided.scope("203.0.113.1"):
                await trio.lowlevel.checkpoint()

        assert not first.cancel_called


async def test_nobody_waits_for_ever(autojump_clock: MockClock) -> None:
    is_over = False
    with Undecided(MAX_WAITING).scope("203.0.113.1"):
        await trio.sleep(10 * 3600)
        is_over = True

    assert not is_over
