"""Evaluations while a run goes on: a whole learner, scripted nodes, a virtual clock."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from echo2swarm.system.jsonl import read_jsonl
from learner.config import EvalConfig, LearnerConfig
from protocols import leases
from protocols.heartbeat import NodeState
from protocols.packed import pack_tokens, unpack_tokens
from protocols.reasons import Reason
from protocols.rollouts import Rollout
from tests.learner.swarm_world import (
    HELD_OUT_TOKEN,
    UNSCORABLE_TOKEN,
    ScriptedNode,
    World,
    config,
    open_world,
)


def settings(
    num_steps: int = 12,
    *,
    every: int = 5,
    prompts: int = 4,
    samples: int = 2,
    max_share: float = 0.25,
    timeout_s: float = 900.0,
    lease_timeout_s: float = 30.0,
    max_staleness: int = 2,
    publish_every: int = 1,
) -> LearnerConfig:
    return config(
        num_steps=num_steps,
        max_staleness=max_staleness,
        publish_every=publish_every,
        lease_timeout_s=lease_timeout_s,
        evaluation=EvalConfig(
            every_steps=every,
            num_prompts=prompts,
            num_samples=samples,
            max_share=max_share,
            timeout_s=timeout_s,
        ),
    )


def rows(folder: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return db.execute(query).fetchall()


def evaluations(folder: Path) -> dict[int, str]:
    return dict(rows(folder, "SELECT version, outcome FROM evaluations ORDER BY version"))


def eval_lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(folder / "metrics.jsonl") if "eval/version" in line]


def eval_leases(node: ScriptedNode) -> list[leases.Lease]:
    return [lease for lease in node.leases if lease.max_version is not None]


async def finish(world: World, *, within_s: float = 3000.0) -> None:
    with trio.fail_after(within_s):
        await world.finished.wait()


async def until(is_so: Callable[[], object], *, within_s: float = 600.0) -> None:
    with trio.fail_after(within_s):
        while not is_so():  # noqa: ASYNC110 - looking needs no event
            await trio.sleep(0.1)


async def test_the_first_the_last_and_every_fifth_version_are_evaluated_beside_training(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings()) as world:
        nodes = [world.start_node(1), world.start_node(2)]
        await finish(world)
        trained = world.trainer.batches

    found = evaluations(tmp_path)
    first, *between, last = found
    assert (first, last) == (0, 12)
    assert [version // 5 for version in between] == [1, 2]
    assert set(found.values()) == {"complete"}
    assert len(trained) == 12
    assert all(unpack_tokens(g.prompt_tokens)[0] != HELD_OUT_TOKEN for b in trained for g in b)
    assert all(node.was_dismissed for node in nodes)
    # Not by training's tables, nor the other way round.
    assert rows(tmp_path, "SELECT MAX(group_id) < 1000 FROM groups") == [(1,)]
    assert rows(tmp_path, "SELECT COUNT(*) FROM evaluation_samples") == [(4 * 8,)]
    assert set(world.held_out.scored) == {0, 1, 2, 3}


async def test_every_sample_of_a_point_is_of_its_version_and_each_point_asks_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(max_share=1.0, prompts=6)) as world:
        nodes = [world.start_node(n, generate_s=3.0) for n in (1, 2, 3)]
        await finish(world)
        asked = [lease for node in nodes for lease in eval_leases(node)]

    versions = set(evaluations(tmp_path))
    assert {lease.min_version for lease in asked} == versions
    assert all(lease.min_version == lease.max_version for lease in asked)
    questions = {
        version: {
            (group.group_id, group.prompt_tokens, sample.index, sample.seed)
            for lease in asked
            if lease.min_version == version
            for group in lease.groups
            for sample in group.samples
        }
        for version in versions
    }
    assert len({frozenset(each) for each in questions.values()}) == 1
    assert len(questions[0]) == 12


async def test_what_was_found_is_in_the_metrics_the_ledger_the_log_and_the_status(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=6)) as world:
        world.start_node(1)
        world.start_node(2)
        await finish(world)
        status = world.learner.status.status().evaluation

    lines = eval_lines(tmp_path)
    assert [line["eval/version"] for line in lines] == list(evaluations(tmp_path))
    for line in lines:
        assert line["eval/mean_at_k"] == line["eval/pass_at_1"] == 0.5
        assert line["eval/mean_at_k_low"] < 0.5 < line["eval/mean_at_k_high"]
        assert line["eval/pass_at_k_low"] < 0.5 < line["eval/pass_at_k_high"]
        assert (line["eval/num_prompts"], line["eval/samples_per_prompt"]) == (4, 2)
        assert line["eval/is_complete"] is True
        assert line["eval/num_failed"] == 0
        assert line["eval/took_s"] > 0
        assert "step" not in line
    figures = json.loads(rows(tmp_path, "SELECT figures FROM evaluations WHERE version = 6")[0][0])
    assert figures["mean_at_k"]["value"] == 0.5
    assert figures["mean_at_k"]["low"] == lines[-1]["eval/mean_at_k_low"]
    assert status is not None
    assert status.newest is not None
    assert (status.newest.version, status.newest.num_prompts) == (6, 4)
    assert status.newest.mean_at_k.high == lines[-1]["eval/mean_at_k_high"]
    assert status.running_version is None


async def test_no_more_nodes_evaluate_than_their_share_and_the_others_train(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=30, prompts=30, max_share=0.5)) as world:
        nodes = [world.start_node(n) for n in range(1, 5)]
        most = 0
        while world.trainer.step < 25:
            assert world.learner.evaluation is not None
            running = world.learner.evaluation.running
            if running is not None:
                most = max(most, len(running.evaluators))
            await trio.sleep(0.25)
        steps_while_evaluated = world.trainer.step

    assert most == 2
    assert steps_while_evaluated >= 25
    assert sum(len(eval_leases(node)) > 0 for node in nodes) >= 2


async def test_a_swarm_of_one_node_evaluates_and_trains(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=6)) as world:
        world.start_node(1)
        await finish(world)

    assert set(evaluations(tmp_path).values()) == {"complete"}
    assert 0 in evaluations(tmp_path)
    assert 6 in evaluations(tmp_path)


@pytest.mark.parametrize("bound", [0, 1])
async def test_evaluation_breaks_no_bound_of_staleness(
    tmp_path: Path, autojump_clock: MockClock, bound: int
) -> None:
    async with open_world(tmp_path, settings(num_steps=8, every=3, max_staleness=bound)) as world:
        world.start_node(1)
        world.start_node(2, generate_s=3.0)
        await finish(world)

    ((worst, num),) = rows(tmp_path, "SELECT MAX(staleness), COUNT(trained_step) FROM rollouts")
    assert num == 8 * 4
    assert worst <= bound
    assert set(evaluations(tmp_path).values()) == {"complete"}


async def test_with_versions_published_now_and_then_only_those_are_evaluated(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=11, every=5, max_staleness=3, publish_every=3)
    async with open_world(tmp_path, table) as world:
        world.start_node(1)
        world.start_node(2)
        await finish(world)

    assert list(evaluations(tmp_path)) == [0, 6, 9]


async def test_without_evaluation_nothing_of_it_is_anywhere(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(every=0, num_steps=3)) as world:
        node = world.start_node(1)
        await finish(world)

    assert eval_leases(node) == []
    assert eval_lines(tmp_path) == []
    assert world.held_out.scored == []
    assert evaluations(tmp_path) == {}


async def test_a_node_that_speaks_the_older_protocol_trains_and_never_evaluates(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=6)) as world:
        old = world.start_node(1, lease_protocol=leases.OLD_PROTOCOL_ID)
        new = world.start_node(2)
        await finish(world)

    assert eval_leases(old) == []
    assert len(old.leases) > 0
    assert len(eval_leases(new)) > 0
    assert set(evaluations(tmp_path).values()) == {"complete"}


async def test_a_swarm_of_older_nodes_is_not_kept_waiting_at_the_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=3)) as world:
        world.start_node(1, lease_protocol=leases.OLD_PROTOCOL_ID)
        await until(lambda: world.trainer.step == 3)
        await finish(world, within_s=60)

    assert evaluations(tmp_path) == {}
    assert world.results == [True]


async def test_the_last_evaluation_can_be_interrupted_and_is_gone_on_with_later(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=2, every=100, prompts=10, lease_timeout_s=1000.0)
    async with open_world(tmp_path, table) as world:
        node = world.start_node(1)
        await until(lambda: 2 in evaluations(tmp_path))
        node.generate_s = 500.0
        await trio.sleep(10)
        world.learner.stop()
        await finish(world, within_s=30)
    assert world.results == [True]
    assert evaluations(tmp_path) == {0: "complete", 2: None}

    async with open_world(tmp_path, table, resume=True) as world:
        world.start_node(1, session_id="session-2")
        await finish(world)

    assert evaluations(tmp_path) == {0: "complete", 2: "complete"}


async def test_the_status_counts_what_a_node_has_of_an_evaluation_in_hand(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=50, every=100)) as world:
        node = world.start_node(1, generate_s=20.0)
        await until(lambda: eval_leases(node))
        (line,) = world.learner.status.status().nodes

    assert line.num_in_flight == eval_leases(node)[0].num_completions


async def test_what_another_version_sampled_is_refused_and_asked_of_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def newer(made: Rollout) -> Rollout:
        is_asked = made.group_id >= 2**62
        return msgspec.structs.replace(made, newest_version=made.newest_version + is_asked)

    async with open_world(tmp_path, settings(num_steps=4, every=100)) as world:
        liar = world.start_node(1, alter=newer)
        await until(lambda: eval_leases(liar))
        world.start_node(2)
        await finish(world)
        refusals = {v.refusal for reply in liar.replies for v in reply.verdicts}
        node = world.learner.nodes.get(liar.peer)

    assert refusals == {None, Reason.WRONG_VERSION}
    assert len([lease for lease in eval_leases(liar) if lease.min_version == 0]) == 1
    assert node is not None
    assert node.refusals[Reason.WRONG_VERSION] > 0
    assert rows(tmp_path, "SELECT DISTINCT peer FROM evaluation_samples") != [(liar.peer,)]
    assert ("wrong_version",) in rows(tmp_path, "SELECT reason FROM refusals")


async def test_what_is_no_completion_is_refused_and_its_node_is_not_asked_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def longer(made: Rollout) -> Rollout:
        if made.group_id < 2**62:
            return made
        return msgspec.structs.replace(made, logprobs=made.logprobs + made.logprobs[-4:])

    async with open_world(tmp_path, settings(num_steps=4, every=100)) as world:
        bad = world.start_node(1, alter=longer)
        await until(lambda: eval_leases(bad))
        world.start_node(2)
        await finish(world)

    refusals = {v.refusal for reply in bad.replies for v in reply.verdicts}
    assert Reason.WRONG_SHAPE in refusals
    assert len([lease for lease in eval_leases(bad) if lease.min_version == 0]) == 1
    assert rows(tmp_path, "SELECT COUNT(*) FROM evaluation_samples WHERE version = 4") == [(8,)]


async def test_a_node_that_has_to_wait_for_the_scorer_is_asked_again_later(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=2, every=100)) as world:
        world.held_out.num_waiting = 2
        node = world.start_node(1)
        await finish(world)

    refusals = [v.refusal for reply in node.replies for v in reply.verdicts]
    assert Reason.RATE_LIMITED in refusals
    assert rows(tmp_path, "SELECT COUNT(*) FROM evaluation_samples WHERE version = 0") == [(8,)]


async def test_a_node_that_has_to_wait_for_the_scorer_of_an_evaluation_trains_meanwhile(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=4, every=100)) as world:
        node = world.start_node(1)
        await node.joined.wait()
        world.held_out.waits[node.peer] = "it waits 10 s"
        await until(lambda: world.trainer.step >= 1)
        leases_while_waiting = eval_leases(node)
        del world.held_out.waits[node.peer]
        await finish(world)

    assert leases_while_waiting == []
    assert eval_leases(node) != []


async def test_what_the_verifier_fails_on_counts_as_nothing_won_and_is_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def garbage(made: Rollout) -> Rollout:
        if made.group_id != 2**62:
            return made
        tokens = (UNSCORABLE_TOKEN, *unpack_tokens(made.tokens)[1:])
        return msgspec.structs.replace(made, tokens=pack_tokens(tokens))

    async with open_world(tmp_path, settings(num_steps=2, every=100)) as world:
        node = world.start_node(1, alter=garbage)
        await finish(world)

    assert {v.refusal for reply in node.replies for v in reply.verdicts} == {None}
    line = eval_lines(tmp_path)[0]
    assert line["eval/num_failed"] == 2
    assert line["eval/mean_at_k"] == 0.25


async def test_a_node_that_dies_in_an_evaluation_costs_its_lease_and_others_go_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=4, max_share=1.0)) as world:
        victim = world.start_node(1, generate_s=1000.0)
        await until(lambda: eval_leases(victim))
        world.start_node(2)
        victim.kill()
        await finish(world)

    assert evaluations(tmp_path)[0] == "complete"
    assert rows(tmp_path, "SELECT COUNT(*) FROM evaluation_samples WHERE version = 0") == [(8,)]


async def test_a_lease_given_back_is_leased_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=2, every=100)) as world:
        lazy = world.start_node(1, generate_s=10_000.0)
        await until(lambda: eval_leases(lazy))
        reply = await lazy.give_back(eval_leases(lazy)[0].lease_id)
        world.start_node(2)
        await until(lambda: evaluations(tmp_path).get(0) == "complete", within_s=200)

    assert reply.refusal is None
    assert rows(tmp_path, "SELECT COUNT(DISTINCT peer) FROM evaluation_leases")[0][0] == 2


async def test_an_evaluation_whose_time_is_over_is_told_with_what_it_has(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=60, every=100, prompts=50, timeout_s=40.0)
    async with open_world(tmp_path, table) as world:
        world.start_node(1, generate_s=15.0)
        world.start_node(2, generate_s=15.0)
        await until(lambda: evaluations(tmp_path).get(0) is not None)
        (line,) = eval_lines(tmp_path)

    assert evaluations(tmp_path)[0] == "partial"
    assert 0 < line["eval/num_prompts"] < 50
    assert line["eval/is_complete"] is False
    num = line["eval/num_prompts"]
    kept = rows(tmp_path, "SELECT COUNT(*) FROM evaluation_samples WHERE version = 0")[0][0]
    assert kept >= 2 * num


async def test_an_evaluation_without_one_whole_prompt_is_dropped_and_training_goes_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=30, every=100, timeout_s=20.0, lease_timeout_s=100.0)
    async with open_world(tmp_path, table) as world:
        slow = world.start_node(1, generate_s=60.0)
        await until(lambda: eval_leases(slow))
        world.start_node(2)
        await until(lambda: evaluations(tmp_path).get(0) is not None)
        await until(lambda: len(slow.replies) > 0)
        late = slow.replies[0]
        await finish(world)
        node = world.learner.nodes.get(slow.peer)

    assert evaluations(tmp_path)[0] == "dropped"
    assert [line["eval/version"] for line in eval_lines(tmp_path)] == [30]
    assert {verdict.refusal for verdict in late.verdicts} == {Reason.LEASE_EXPIRED}
    assert node is not None
    assert node.refusals[Reason.LEASE_EXPIRED] == 0


async def test_an_evaluation_that_no_node_can_go_on_with_ends_soon(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=100, every=100, prompts=20)
    async with open_world(tmp_path, table) as world:
        victim = world.start_node(1)
        await until(lambda: len(eval_leases(victim)) >= 2)
        world.start_node(2)
        victim.kill()
        started_s = trio.current_time()
        # The other one has gone on to newer versions before it was asked.
        await until(lambda: world.trainer.step >= 3 or evaluations(tmp_path)[0] is not None)
        await until(lambda: evaluations(tmp_path)[0] is not None, within_s=120)
        took_s = trio.current_time() - started_s

    assert took_s < 120
    assert evaluations(tmp_path)[0] in ("partial", "complete")


async def test_a_learner_that_was_killed_goes_on_with_its_evaluation_and_counts_nothing_twice(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=4, every=100, prompts=10)
    async with open_world(tmp_path, table) as world:
        node = world.start_node(1)
        await until(lambda: rows(tmp_path, "SELECT COUNT(*) FROM evaluation_samples")[0][0] >= 6)
        lease = eval_leases(node)[-1]
    before = rows(tmp_path, "SELECT * FROM evaluation_samples ORDER BY 1, 2, 3")
    assert evaluations(tmp_path) == {0: None}

    async with open_world(tmp_path, table, resume=True) as world:
        node = world.start_node(1, generate_s=0.5)
        await node.joined.wait()
        # What it had in hand is still good, and welcome once.
        made = node.rollouts_of(lease, 0)
        replies = [await node.submit(lease.lease_id, made) for _ in range(2)]
        await finish(world)

    assert evaluations(tmp_path) == {0: "complete", 4: "complete"}
    after = rows(tmp_path, "SELECT * FROM evaluation_samples ORDER BY 1, 2, 3")
    assert set(before) <= set(after)
    assert len([row for row in after if row[0] == 0]) == 20
    assert {verdict.refusal for verdict in replies[1].verdicts} == {Reason.DUPLICATE}
    assert [line["eval/version"] for line in eval_lines(tmp_path)] == [0, 4]
    assert [line["eval/mean_at_k"] for line in eval_lines(tmp_path)] == [0.5, 0.5]


async def test_an_evaluation_that_was_begun_with_other_settings_is_begun_anew(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=3, every=100, prompts=10)) as world:
        world.start_node(1)
        await until(lambda: rows(tmp_path, "SELECT COUNT(*) FROM evaluation_samples")[0][0] >= 6)

    table = settings(num_steps=3, every=100, prompts=3)
    async with open_world(tmp_path, table, resume=True) as world:
        world.start_node(1, session_id="session-2")
        await finish(world)

    assert evaluations(tmp_path) == {0: "complete", 3: "complete"}
    num = rows(tmp_path, "SELECT COUNT(*) FROM evaluation_samples WHERE version = 0")
    assert num == [(6,)]


async def test_a_run_that_was_killed_in_its_last_evaluation_ends_with_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=2, every=100, prompts=10)
    async with open_world(tmp_path, table) as world:
        world.start_node(1)
        await until(lambda: 2 in evaluations(tmp_path))

    async with open_world(tmp_path, table, resume=True) as world:
        node = world.start_node(1, session_id="session-2")
        await finish(world)

    assert evaluations(tmp_path) == {0: "complete", 2: "complete"}
    assert node.was_dismissed


async def test_a_node_is_held_back_while_it_has_a_lease_and_no_longer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=40, every=100)) as world:
        node = world.start_node(1, generate_s=3.0)
        await until(lambda: eval_leases(node))
        known = world.learner.nodes.get(node.peer)
        assert known is not None
        while_leased_s = known.held_back_until_s
        await until(lambda: evaluations(tmp_path).get(0) is not None)
        ended_s = trio.current_time()

    assert while_leased_s == inf
    assert ended_s - 5 <= known.held_back_until_s <= ended_s


async def test_a_node_that_evaluates_has_no_training_in_hand_that_would_wait(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=50, every=100, prompts=1)
    async with open_world(tmp_path, table) as world:
        node = world.start_node(1, generate_s=20.0)
        await until(lambda: eval_leases(node))
        reply = await node.ask(wait_s=0.0)
        await until(lambda: len(node.leases) > 1, within_s=30)

    assert reply.lease is None
    assert reply.why == "it has work of an evaluation in hand"
    assert node.leases[1].max_version is None


async def test_a_version_that_was_never_published_is_not_evaluated(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(num_steps=50)) as world:
        liar = world.start_node(1)
        liar.applied, liar.state = 77, NodeState.ACTIVE
        await liar.joined.wait()
        reply = await liar.ask(wait_s=5.0)

    assert reply.lease is None
    assert evaluations(tmp_path) == {}


async def test_what_is_being_judged_when_the_time_is_over_still_counts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = settings(num_steps=50, every=100, prompts=20, timeout_s=20.0, lease_timeout_s=200.0)
    async with open_world(tmp_path, table) as world:
        world.held_out.score_s = 12.0
        world.start_node(1, generate_s=1.0)
        await until(lambda: evaluations(tmp_path).get(0) is not None)
        figures = json.loads(rows(tmp_path, "SELECT figures FROM evaluations")[0][0])
        await trio.sleep(30)

    whole = rows(
        tmp_path,
        "SELECT prompt_index FROM evaluation_samples GROUP BY prompt_index HAVING COUNT(*) = 2",
    )
    assert figures["num_prompts"] == len(whole) > 1


async def test_the_whole_swarm_does_the_last_evaluation(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    most = 0
    async with open_world(tmp_path, settings(num_steps=3, every=100, prompts=30)) as world:
        for number in (1, 2, 3):
            world.start_node(number)
        while not world.finished.is_set():
            assert world.learner.evaluation is not None
            running = world.learner.evaluation.running
            if running is not None and running.version == 3:
                most = max(most, len(running.evaluators))
            await trio.sleep(0.1)

    assert most > 1


async def test_a_prompt_that_is_held_out_is_never_trained_on_even_if_the_task_has_it_twice(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = settings(num_steps=6, every=100)
    async with open_world(tmp_path, table) as world:
        # The task's training prompts are [1, 0] to [1, 7], again and again.
        evaluation = world.learner.evaluation
        assert evaluation is not None
        assert pack_tokens([HELD_OUT_TOKEN, 0]) in evaluation.prompt_tokens
        world.start_node(1)
        world.start_node(2)
        await finish(world)

    held_out = {row[0] for row in rows(tmp_path, "SELECT prompt_tokens FROM evaluation_prompts")}
    trained = {row[0] for row in rows(tmp_path, "SELECT prompt_tokens FROM groups")}
    assert len(held_out) == 4
    assert not held_out & trained
