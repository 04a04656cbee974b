"""A whole learner whose verifier, prompts or nodes make scoring hard."""

import math
from pathlib import Path

import structlog
import trio
from trio.testing import MockClock

from learner.scoring.messages import CompletionToScore
from tests.learner.swarm_world import config, open_world


class Verifier:
    """Raises until it is mended."""

    def __init__(self) -> None:
        self.is_broken = True
        self.num_asked = 0

    def reward_of(self, _completion: CompletionToScore) -> float:
        self.num_asked += 1
        return math.nan if self.is_broken else 1.0


async def test_a_verifier_that_always_fails_does_not_burn_the_swarm_and_recovers_by_itself(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    verifier = Verifier()
    with structlog.testing.capture_logs() as events:
        async with open_world(tmp_path, config(num_steps=3), reward_of=verifier.reward_of) as world:
            for number in (1, 2, 3):
                world.start_node(number, generate_s=0.1)
            await trio.sleep(600)
            status = world.learner.status.status()
            num_asked = verifier.num_asked
            lines = [event["event"] for event in events]

            verifier.is_broken = False
            with trio.fail_after(2000):
                await world.finished.wait()
            after = world.learner.status.status()

    assert num_asked < 120
    assert "the verifier failed on the last" in status.advice
    assert "KeyError: 'x'" in status.advice
    assert 1 <= lines.count("verifier.failing") < 10
    assert "verifier" not in after.advice
    assert world.trainer.step == 3


async def test_a_node_whose_completions_take_too_long_gets_no_work_and_is_told_why(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    why = "2 of its completions took longer than 2 s to score: it waits 10 s"
    async with open_world(tmp_path, config(num_steps=3)) as world:
        slow = world.start_node(1)
        await slow.joined.wait()
        world.scorer.waits[slow.peer] = why
        reply = await slow.ask(wait_s=0.0)
        await trio.sleep(world.learner.watchdog.stall_s + 2)
        stalled = world.learner.watchdog.report
        world.start_node(2)
        with trio.fail_after(2000):
            await world.finished.wait()
        status = world.learner.status.status()

    (line,) = [node for node in status.nodes if node.peer_id == slow.peer]
    assert line.warning == why
    assert line.num_accepted == 0
    assert stalled.endswith(f"these wait for the scorer: {slow.name} ({why})")
    assert slow.leases == []
    assert (reply.lease, reply.why) == (None, why)


async def test_prompts_that_can_not_be_made_are_left_out_counted_and_named(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with structlog.testing.capture_logs() as events:
        async with open_world(tmp_path, config(num_steps=4), unmade=frozenset({1, 2, 5})) as world:
            world.start_node(1)
            await trio.sleep(10)
            status = world.learner.status.status()
            with trio.fail_after(2000):
                await world.finished.wait()

    assert "3 prompts could not be made and are left out" in status.advice
    assert "prompt 1, items.jsonl, line 2: KeyError: 'x'" in status.advice
    told = [event for event in events if event["event"] == "prompts.skipped"]
    assert sum(event["count"] for event in told) == 3
    assert told[0]["which"][0] == "prompt 1, items.jsonl, line 2: KeyError: 'x'"
    assert not {1, 2, 5} & set(world.trainer.trained)
