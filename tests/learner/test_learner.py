"""The learner as a whole, against scripted nodes on a virtual clock."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from echo2swarm.scheduling.leases.groups import DropReason
from echo2swarm.scheduling.leases.lease_book import LeaseState
from echo2swarm.system.jsonl import read_jsonl
from echo2swarm.system.rates import LearnerPhase
from learner.scoring.messages import CompletionToScore
from learner.status.service import StatusService
from protocols.heartbeat import Directive
from protocols.reasons import Reason
from protocols.status import StatusReply
from tests.learner.swarm_world import RewardOf, World, config, open_world


def rows(folder: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return db.execute(query).fetchall()


async def finish(world: World, *, within_s: float = 2000.0) -> None:
    with trio.fail_after(within_s):
        await world.finished.wait()


def outcomes(folder: Path) -> dict[str, int]:
    """Count the leased prompts by how they ended."""
    return dict(
        rows(
            folder,
            "SELECT CASE WHEN trained_step IS NOT NULL THEN 'trained' "
            "WHEN drop_reason IS NOT NULL THEN drop_reason ELSE 'open' END, COUNT(*) "
            "FROM groups GROUP BY 1",
        )
    )


async def test_a_run_trains_all_its_steps_and_dismisses_its_nodes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=4)) as world:
        nodes = [world.start_node(1), world.start_node(2)]
        await finish(world)

        assert world.results == [True]
        assert world.publisher.versions == [0, 1, 2, 3, 4]
        assert all(node.was_dismissed for node in nodes)
        assert world.saved_steps == [4]
    lines = list(read_jsonl(tmp_path / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["reward_mean"] == 1.0 and line["num_rollouts"] == 4 for line in lines)
    status = msgspec.json.decode((tmp_path / "status.json").read_bytes(), type=StatusReply)
    assert status.phase == LearnerPhase.FINISHED
    assert sum(count.num_rollouts for count in status.staleness) == 16


async def test_every_leased_prompt_ends_in_exactly_one_way_and_nothing_is_trained_twice(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=6)) as world:
        world.start_node(1)
        world.start_node(2, generate_s=5.0)
        await finish(world)
        trained = world.trainer.trained

    assert len(trained) == len(set(trained)) == 12
    ended = outcomes(tmp_path)
    assert ended.pop("trained") == 12
    assert "open" not in ended
    assert set(ended) <= {"run_ended", "stale"}
    assert rows(tmp_path, "SELECT COUNT(*) FROM leases WHERE outcome IS NULL") == [(0,)]


@pytest.mark.parametrize("bound", [0, 1, 2])
async def test_no_update_ever_uses_a_rollout_older_than_s(
    tmp_path: Path, autojump_clock: MockClock, bound: int
) -> None:
    async with open_world(tmp_path, config(num_steps=6, max_staleness=bound)) as world:
        world.start_node(1, broadcast_s=1.0)
        world.start_node(2, broadcast_s=5.0, generate_s=3.0)
        await finish(world)

    worst = rows(tmp_path, "SELECT MAX(staleness), COUNT(*) FROM rollouts WHERE staleness >= 0")
    assert worst[0][1] == 24
    assert isinstance(worst[0][0], int)
    assert worst[0][0] <= bound


async def test_with_s_0_the_learner_waits_for_every_version_and_with_s_2_it_does_not(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def bubble(folder: Path, bound: int) -> float:
        await trio.Path(folder).mkdir()
        async with open_world(folder, config(num_steps=5, max_staleness=bound)) as world:
            world.start_node(1, generate_s=1.0)
            await finish(world)
        lines = list(read_jsonl(folder / "metrics.jsonl"))
        return float(sum(line["wait_s"] for line in lines[1:]))

    on_policy = await bubble(tmp_path / "s0", 0)
    asynchronous = await bubble(tmp_path / "s2", 2)

    assert on_policy > 4 * 2  # each step: two leases of one prompt, one after the other
    assert asynchronous < 1


def of_even_prompts_every_second_one() -> RewardOf:
    """Return rewards that differ within the groups of even prompts, and within no other."""
    num_scored: Counter[int] = Counter()

    def reward_of(completion: CompletionToScore) -> float:
        num_scored[completion.index] += 1
        return float(completion.index % 2 or num_scored[completion.index] % 2)

    return reward_of


@pytest.mark.parametrize("bound", [0, 2])
async def test_groups_without_signal_are_replaced_and_accounted_for(
    tmp_path: Path, autojump_clock: MockClock, bound: int
) -> None:
    settings = config(num_steps=6, max_staleness=bound, equal_groups="replace")
    rewards = of_even_prompts_every_second_one()
    async with open_world(tmp_path, settings, reward_of=rewards) as world:
        world.start_node(1)
        world.start_node(2)
        await finish(world)
        trained = world.trainer.trained

    lines = list(read_jsonl(tmp_path / "metrics.jsonl"))
    assert len(trained) == 12
    assert all(group_id % 2 == 0 for group_id in trained)
    assert all(line["reward_mean"] == 0.5 for line in lines)
    ended = outcomes(tmp_path)
    assert ended.pop("trained") == 12
    assert ended.pop(DropReason.EQUAL) >= sum(line["num_groups_replaced"] for line in lines) >= 11
    assert set(ended) <= {"run_ended", "stale"}


async def test_where_no_group_has_signal_updates_are_made_all_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=3, equal_groups="replace")) as world:
        world.start_node(1)
        await finish(world)
        assert len(world.trainer.trained) == 6
    lines = list(read_jsonl(tmp_path / "metrics.jsonl"))
    # Two groups an update, and for each of them at most three that are replaced.
    assert [line["num_groups_replaced"] for line in lines] == [6, 6, 6]


async def test_a_node_killed_in_mid_generation_costs_its_lease_and_nothing_else(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=5, max_staleness=0)) as world:
        victim = world.start_node(1, generate_s=1000.0)
        await victim.joined.wait()
        while not victim.leases:  # noqa: ASYNC110 - it is scripted
            await trio.sleep(0.1)
        world.start_node(2)
        victim.kill()
        await finish(world)

    ends = dict(rows(tmp_path, "SELECT lease_id, outcome FROM leases"))
    assert ends[victim.leases[0].lease_id] in (LeaseState.NODE_LOST, LeaseState.TIMED_OUT)
    assert outcomes(tmp_path)["trained"] == 10


async def test_a_node_that_comes_back_under_its_identity_is_one_node_not_two(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=50)) as world:
        first = world.start_node(1, generate_s=1000.0)
        while not first.leases:  # noqa: ASYNC110
            await trio.sleep(0.1)
        first.kill()
        await trio.sleep(1)
        second = world.start_node(1, session_id="session-2")
        while not second.replies:  # noqa: ASYNC110
            await trio.sleep(0.1)
        status = world.learner.status.status()

    assert [node.peer_id for node in status.nodes] == [first.peer]
    assert status.nodes[0].is_connected
    lost = rows(tmp_path, "SELECT DISTINCT outcome FROM leases WHERE session_id = 'session-1'")
    assert lost == [(LeaseState.NODE_LOST,)]


async def test_the_outlook_outlives_the_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, config(num_steps=6)) as world:
        world.start_node(1)
        world.start_node(2)
        await finish(world)
        status = world.learner.status.status()

    assert status.advice == "the run is finished"
    assert status.outlook is not None
    assert status.outlook.train is not None
    assert status.outlook.train.num_samples >= 5
    assert status.outlook.busy_share is not None


async def test_a_request_without_work_is_answered_the_moment_there_is_some(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=3, max_staleness=0)) as world:
        busy = world.start_node(1, generate_s=8.0)
        while len(busy.leases) < 1:  # noqa: ASYNC110
            await trio.sleep(0.1)
        world.start_node(2, generate_s=8.0)
        idle = world.start_node(3)
        await idle.joined.wait()
        await trio.sleep(3)
        asked_s = trio.current_time()
        lease = (await busy.give_back(busy.leases[0].lease_id)).refusal
        with trio.fail_after(1):
            while not idle.leases:  # noqa: ASYNC110
                await trio.sleep(0.05)

        assert lease is None
        assert trio.current_time() - asked_s < 1


async def test_the_cheapest_nodes_are_activated_and_the_others_are_told_why(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    base = config(num_steps=3)
    selector = msgspec.structs.replace(base.selector, max_nodes=1)
    async with open_world(tmp_path, msgspec.structs.replace(base, selector=selector)) as world:
        dear = world.start_node(1, usd_per_hour=2.0)
        cheap = world.start_node(2, usd_per_hour=1.0)
        await trio.sleep(8)
        status = world.learner.status.status()
        reply = await dear.heartbeat()

        directives = {node.name: node.directive for node in status.nodes}
        assert directives == {dear.name: "standby", cheap.name: "active"}
        assert reply.directive is Directive.STANDBY
        assert "max_nodes" in reply.why
        await finish(world)


async def test_stopping_finishes_the_update_saves_and_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=50)) as world:
        world.start_node(1)
        while not world.trainer.batches:  # noqa: ASYNC110
            await trio.sleep(0.1)
        world.learner.stop()
        await finish(world, within_s=60)

        assert world.results == [False]
        assert world.saved_steps == [1]
        assert world.trainer.step == 1


async def test_versions_are_published_every_kappa_steps(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = config(num_steps=6, max_staleness=3, publish_every=3)
    async with open_world(tmp_path, settings) as world:
        world.start_node(1)
        await finish(world)

        assert world.publisher.versions == [0, 3, 6]
    assert [line["step"] for line in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


async def test_status_over_the_network_is_that_of_the_file(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=50)) as world:
        node = world.start_node(1)
        await trio.sleep(12)
        told = await node.status()
        await trio.sleep(1.1)
        written = msgspec.json.decode((tmp_path / "status.json").read_bytes(), type=StatusReply)

    assert told.learner_step == written.learner_step > 0
    assert told.nodes[0].num_accepted > 0
    assert told.nodes[0].broadcast_s is not None
    assert told.supplied_rollouts_per_s > 0
    assert told.needed_rollouts_per_s == pytest.approx(4 / 4 * 1.15)
    assert told.worst_heartbeat_delay_s < 1


async def test_after_a_run_no_task_is_left(tmp_path: Path, autojump_clock: MockClock) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    async with open_world(tmp_path, config(num_steps=2)) as world:
        world.start_node(1)
        await finish(world)

    assert trio.lowlevel.current_statistics().tasks_living == before


async def test_a_learner_that_was_killed_makes_the_same_versions_again_and_goes_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=6)) as world:
        world.start_node(1)
        world.start_node(2, generate_s=3.0)
        while world.trainer.step < 3 or world.publisher.versions[-1] < 3:  # noqa: ASYNC110
            await trio.sleep(0.1)
        published = dict(world.publisher.weights)
    accepted = rows(tmp_path, "SELECT group_id, sample_index, accepted_unix_s FROM rollouts")

    async with open_world(tmp_path, config(num_steps=6), resume=True) as world:
        resumed_at = world.learner.progress.step
        world.start_node(1, session_id="session-2")
        await finish(world)

        assert resumed_at >= 3
        assert world.publisher.versions == list(range(resumed_at, 7))
        assert all(
            world.publisher.weights[version] == weights
            for version, weights in published.items()
            if version in world.publisher.weights
        )
        assert resumed_at in published
        trained = world.trainer.trained
    assert len(trained) == len(set(trained)) == 12
    assert set(accepted) <= set(
        rows(tmp_path, "SELECT group_id, sample_index, accepted_unix_s FROM rollouts")
    )
    assert outcomes(tmp_path)["trained"] == 12
    assert "resumed" not in outcomes(tmp_path)
    assert rows(tmp_path, "SELECT MAX(staleness) FROM rollouts")[0][0] <= 2


async def test_a_lease_in_hand_when_the_learner_was_killed_is_still_good(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        before = world.start_node(1, generate_s=10_000.0)
        while not before.leases:  # noqa: ASYNC110
            await trio.sleep(0.1)
        lease = before.leases[0]

    async with open_world(tmp_path, resume=True) as world:
        node = world.start_node(1, generate_s=10_000.0)
        await node.joined.wait()
        reply = await node.submit(lease.lease_id, node.rollouts_of(lease, 0))
        again = await node.submit(lease.lease_id, node.rollouts_of(lease, 0))

    assert [verdict.refusal for verdict in reply.verdicts] == [None, None]
    assert {verdict.refusal for verdict in again.verdicts} == {Reason.DUPLICATE}


async def test_what_a_node_did_before_a_restart_still_counts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=50)) as world:
        node = world.start_node(1)
        while world.trainer.step < 2:  # noqa: ASYNC110
            await trio.sleep(0.1)
        (before,) = world.learner.status.status().nodes

    async with open_world(tmp_path, config(num_steps=50), resume=True) as world:
        node = world.start_node(1, session_id="session-2", generate_s=10_000.0)
        await node.joined.wait()
        (after,) = world.learner.status.status().nodes

    assert after.num_accepted >= before.num_accepted > 0
    assert after.num_trained >= before.num_trained > 0


async def test_a_status_is_put_together_once_a_second_however_often_it_is_asked_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_built = 0
    build = StatusService.status

    def count(self: StatusService) -> StatusReply:
        nonlocal num_built
        num_built += 1
        return build(self)

    async with open_world(tmp_path) as world:
        nodes = [world.start_node(1 + i, generate_s=1e6) for i in range(3)]
        for node in nodes:
            await node.joined.wait()
        monkeypatch.setattr(StatusService, "status", count)
        before_s = trio.current_time()
        for _ in range(10):
            for node in nodes:
                assert len((await node.status()).nodes) == 3
        gone_s = trio.current_time() - before_s

    # One for those who ask and one for the file, each second.
    assert num_built <= 2 * (gone_s + 1) + 1


async def test_a_status_of_too_many_nodes_lists_those_that_do_most(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.status.service.MAX_NODES", 2)
    async with open_world(tmp_path, config(num_steps=1000), train_s=1.0) as world:
        idlers = [world.start_node(1 + i, generate_s=1e6) for i in range(3)]
        for idler in idlers:
            await idler.joined.wait()
        worker = world.start_node(9, generate_s=0.5)
        await trio.sleep(30)
        status = world.learner.status.status()

    assert worker.peer in {node.peer_id for node in status.nodes}
    assert len(status.nodes) == 2
    assert status.num_nodes_left_out == 2
