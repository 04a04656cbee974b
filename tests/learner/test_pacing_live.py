"""Pacing as nodes see it: late work is asked of others, and nobody is blamed for it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from protocols.heartbeat import HeartbeatReply
from protocols.reasons import Reason
from protocols.status import NodeStatus
from tests.learner.swarm_world import ScriptedNode, World, config, open_world


def rows(folder: Path, query: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return db.execute(query, values).fetchall()


def line_of(world: World, node: ScriptedNode) -> NodeStatus:
    (line,) = [n for n in world.learner.status.status().nodes if n.peer_id == node.peer]
    return line


class MutableNode(ScriptedNode):
    """It can fall silent for a while, and work on."""

    is_mute = False

    async def heartbeat(self, **changes: object) -> HeartbeatReply:
        while self.is_mute:  # noqa: ASYNC110 - it is scripted
            await trio.sleep(0.1)
        return await super().heartbeat(**changes)


async def test_what_a_node_is_late_with_is_asked_of_another_long_before_the_lease_times_out(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = config(num_steps=400, max_staleness=0, lease_timeout_s=100_000.0)
    with trio.fail_after(20_000.0):
        async with open_world(tmp_path, settings, train_s=2.0) as world:
            nodes = [world.start_node(number) for number in (1, 2)]
            slow = world.start_node(3)
            while world.trainer.step < 8:  # noqa: ASYNC110 - it is scripted
                await trio.sleep(0.1)
            slow.generate_s = 300.0
            num_leases = len(slow.leases)
            while len(slow.leases) < num_leases + 1:  # noqa: ASYNC110
                await trio.sleep(0.1)
            stalled_step, stalled_at_s = world.trainer.step, trio.current_time()
            while world.trainer.step < stalled_step + 4:  # noqa: ASYNC110
                await trio.sleep(0.1)
            took_s = trio.current_time() - stalled_at_s
            answers = len(slow.replies)
            while len(slow.replies) < answers + 1:  # noqa: ASYNC110
                await trio.sleep(1.0)
            line = line_of(world, slow)

            assert took_s < 60.0
            assert nodes[0].replies
            late = [v.refusal for v in slow.replies[-1].verdicts]
            assert late
            assert set(late) == {Reason.ALREADY_ANSWERED}
            assert line.refusals == ()
            assert line.last_refusal == ""
    twice = rows(tmp_path, "SELECT COUNT(*) FROM leased_samples GROUP BY group_id, sample_index")
    assert max(count for (count,) in twice) == 2
    refused = rows(tmp_path, "SELECT reason FROM refusals")
    assert set(refused) == {(Reason.ALREADY_ANSWERED,)}


async def test_a_node_that_was_only_silent_keeps_its_work_and_nobody_does_it_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = config(num_steps=100, max_staleness=2, lease_timeout_s=1000.0)
    async with open_world(tmp_path, settings) as world:
        node = MutableNode(world, 1, generate_s=40.0)
        world.nursery.start_soon(node.run)
        while not node.leases:  # noqa: ASYNC110
            await trio.sleep(0.1)
        node.is_mute = True
        while line_of(world, node).is_connected:  # noqa: ASYNC110
            await trio.sleep(0.1)
        in_flight_while_lost = line_of(world, node).num_in_flight
        node.is_mute = False
        while not line_of(world, node).is_connected:  # noqa: ASYNC110
            await trio.sleep(0.1)
        in_flight_again = line_of(world, node).num_in_flight
        while not node.replies:  # noqa: ASYNC110
            await trio.sleep(0.1)

        assert (in_flight_while_lost, in_flight_again) == (0, 2)
        assert [v.refusal for v in node.replies[0].verdicts] == [None, None]
        first = node.leases[0].lease_id
    asked = rows(
        tmp_path,
        "SELECT COUNT(*) FROM leased_samples JOIN leased_samples AS first "
        "USING (group_id, sample_index) WHERE first.lease_id = ?",
        first,
    )
    assert asked == [(2,)]
    ended = rows(tmp_path, "SELECT outcome FROM leases WHERE lease_id = ?", first)
    assert ended == [("done",)]


async def test_a_node_that_is_too_slow_to_be_of_use_is_told_so_and_so_is_who_looks(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = config(num_steps=1000, max_staleness=2, lease_timeout_s=1000.0)
    async with open_world(tmp_path, settings, train_s=2.0) as world:
        fast = [world.start_node(number, generate_s=0.5) for number in (1, 2)]
        slow = world.start_node(3, generate_s=20.0)
        while world.trainer.step < 5 or "too slow" not in line_of(world, slow).why:
            await trio.sleep(0.5)
            assert world.trainer.step < 200
        reply = await slow.heartbeat()
        asked = await slow.ask(wait_s=0.0)

        assert "too slow to be of use" in reply.why
        assert reply.why.endswith("helps"), "it is not cut"
        assert "max_staleness" in asked.why
        assert asked.lease is None
        assert all("too slow" not in line_of(world, node).why for node in fast)


async def test_a_late_lease_that_nobody_can_take_over_wakes_the_learner_no_more_than_any_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        world.learner.dispatcher.next_late_s = lambda: 0.0  # type: ignore[method-assign]
        await trio.sleep(2.0)
        changes = world.learner.desk._changes
        num_rings = 0
        with trio.move_on_after(20.0):
            while True:
                await changes.next_change.wait()
                num_rings += 1
    assert num_rings <= 40
