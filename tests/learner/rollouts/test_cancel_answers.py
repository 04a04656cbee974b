"""Answers end with what they need."""

import pytest
import trio

from echo2swarm.system.errors import NetworkError
from learner.rollouts.cancel_answers import CancelAnswers
from protocols.ids import PeerId

PEER = PeerId("12D3KooWSomebody")


async def test_an_answer_under_way_has_ended_when_the_context_has(
    autojump_clock: trio.abc.Clock,
) -> None:
    answering = CancelAnswers()
    told: list[str] = []

    async def answer(_peer: PeerId, _data: bytes) -> bytes:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)  # as a transaction that can't be broken off
            told.append("ended")
        raise AssertionError

    async def call() -> None:
        with pytest.raises(NetworkError):
            await answering.guard(answer)(PEER, b"")

    async with trio.open_nursery() as nursery:
        async with answering.open():
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            assert told == []
        assert told == ["ended"]


async def test_a_late_call_is_not_answered() -> None:
    answering = CancelAnswers()

    async def answer(_peer: PeerId, data: bytes) -> bytes:
        return data[::-1]

    guarded = answering.guard(answer)
    async with answering.open():
        assert await guarded(PEER, b"ab") == b"ba"
    with pytest.raises(NetworkError):
        await guarded(PEER, b"ab")


async def test_the_context_ends_at_once_if_nobody_waits_for_an_answer() -> None:
    with trio.fail_after(60):
        async with CancelAnswers().open():
            pass
