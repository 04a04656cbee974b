"""A node at work: leases in, rollouts out, on a virtual clock."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import trio
from trio.testing import MockClock

from echo2swarm.network.base import PeerInfo
from node.membership import LOOK_S
from node.worker import DRAIN_S, KEEP_S, MAX_LEASES, RETRY_REFUSED_S
from protocols.activation import Directive, NodeState, TroubleKind
from protocols.leases import Lease
from protocols.lifecycle import OwnerPaused, OwnerResumed
from protocols.reasons import Reason
from protocols.rollouts import Rollout
from tests.node.bench import LEARNER, LEARNER_AT, Bench, open_bench
from tests.node.fakes import FakeLearner, make_key, make_lease


@contextmanager
def at_most(seconds: float = 300.0) -> Iterator[None]:
    """Virtual time: a test that hangs fails at once."""
    with trio.fail_after(seconds):
        yield


def keys(lease: Lease) -> set[tuple[int, int]]:
    return {(g.group_id, s.index) for g in lease.groups for s in g.samples}


def submitted(learner: FakeLearner) -> list[tuple[int, int]]:
    return [(r.group_id, r.sample_index) for r in learner.rollouts]


async def test_every_leased_rollout_is_submitted_once_with_the_version_that_sampled_it(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.policies.hold(3)
            bench.learner.give(5)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 5 * 8)

    wanted = {key for lease in bench.learner.granted for key in keys(lease)}
    assert len(submitted(bench.learner)) == len(wanted)
    assert set(submitted(bench.learner)) == wanted
    assert {r.oldest_version for r in bench.learner.rollouts} == {3}
    assert {request.applied_version for request in bench.learner.requests} == {3}


async def test_the_next_lease_is_there_before_the_engine_is_done_with_the_last(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.policies.hold(0)
            bench.learner.give(6)
            started_s = trio.current_time()
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 6 * 8)
            took_s = trio.current_time() - started_s

    # Six calls of one second each, and little else.
    assert took_s < 6 + 2


async def test_no_more_leases_are_in_hand_than_keep_the_engine_busy(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 100
            bench.policies.hold(0)
            bench.learner.give(20)
            await trio.sleep(50)

            assert len(bench.learner.granted) == MAX_LEASES
            assert bench.worker.num_rollouts_in_hand == MAX_LEASES * 8


async def test_a_newer_version_is_applied_between_calls_and_the_newest_wins(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 10
            bench.policies.hold(0)
            bench.learner.give(3)
            await bench.learner.until(lambda: len(bench.learner.granted) == 2)
            await trio.sleep(1)
            bench.policies.hold(1)
            bench.policies.hold(2)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 3 * 8)

    assert bench.engine.loaded == [0, 2]
    assert [version for version, _ in bench.engine.called_with] == [0, 2, 2]


async def test_leases_for_one_version_are_done_with_it_and_then_the_newest_is_applied(
    autojump_clock: MockClock,
) -> None:
    def make(number: int) -> Lease:
        lease = make_lease(number)
        return msgspec.structs.replace(lease, max_version=0) if number <= 4 else lease

    async with open_bench(FakeLearner(make=make)) as bench:
        with at_most():
            bench.engine.seconds_per_call = 10
            bench.policies.hold(0)
            bench.learner.give(4)
            await bench.learner.until(lambda: len(bench.learner.granted) == 2)
            await trio.sleep(1)
            bench.policies.hold(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 4 * 8)
            await trio.sleep(1)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 5 * 8)

    assert bench.engine.loaded == [0, 1]
    assert [version for version, _ in bench.engine.called_with] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("after_s", "versions"), [(KEEP_S - 1, [0, 0, 0]), (KEEP_S + 1, [0])])
async def test_the_next_lease_for_a_version_may_come_a_moment_after_the_last_is_done(
    autojump_clock: MockClock, after_s: float, versions: list[int]
) -> None:
    def make(number: int) -> Lease:
        return msgspec.structs.replace(make_lease(number), max_version=0)

    async with open_bench(FakeLearner(make=make)) as bench:
        with at_most():
            bench.policies.hold(0)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.granted) == 1)
            await trio.sleep(0.5)
            bench.policies.hold(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)
            for _ in range(2):
                await trio.sleep(after_s)
                bench.learner.give(1)
                await trio.sleep(bench.engine.seconds_per_call + 0.2)
            await trio.sleep(2 * KEEP_S)

    assert [version for version, _ in bench.engine.called_with] == versions
    assert bench.engine.loaded == [0, 1]
    assert len(bench.learner.returned) == 3 - len(versions)


async def test_a_lease_for_a_version_that_the_engine_has_left_is_given_back(
    autojump_clock: MockClock,
) -> None:
    def make(number: int) -> Lease:
        return msgspec.structs.replace(make_lease(number), max_version=0)

    async with open_bench(FakeLearner(make=make)) as bench:
        with at_most():
            bench.policies.hold(1)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.returned) == 1)

    assert bench.engine.called_with == []
    assert bench.learner.returned[0].why == "the engine is at version 1 already"


async def test_an_engine_that_batches_by_itself_gets_group_by_group_up_to_what_it_takes(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(max_batch=10, is_continuous=True) as bench:
        with at_most():
            bench.engine.seconds_per_call = 10
            bench.policies.hold(0)
            bench.learner.give(3)
            await bench.learner.until(lambda: len(bench.learner.granted) == 3)
            await trio.sleep(5)
            # Groups of four: two of them fit.
            assert bench.engine.called_with == [(0, 4)] * 2
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 3 * 8)

    assert bench.engine.called_with == [(0, 4)] * 6


async def test_such_an_engine_is_given_a_newer_version_in_the_midst_of_sampling(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(is_continuous=True) as bench:
        with at_most():
            bench.engine.seconds_per_call = 10
            bench.policies.hold(0)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.granted) == 1)
            await trio.sleep(1)
            bench.policies.hold(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)

    assert bench.engine.loaded == [0, 1]
    assert {(r.oldest_version, r.newest_version) for r in bench.learner.rollouts} == {(0, 1)}


async def test_when_such_an_engine_dies_in_the_midst_all_goes_back_once_and_it_goes_on_later(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(is_continuous=True) as bench:
        with at_most():
            bench.engine.seconds_per_call = 10
            bench.policies.hold(0)
            bench.learner.give(2)
            await bench.learner.until(lambda: len(bench.learner.granted) == 2)
            await trio.sleep(1)
            bench.engine_dies()
            await bench.learner.until(lambda: len(bench.learner.returned) == 2)
            await trio.sleep(30)
            bench.engine_comes_back()
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)

    *had, last = bench.learner.granted
    returned = [each.lease_id for each in bench.learner.returned]
    assert sorted(returned) == sorted(each.lease_id for each in had)
    assert set(submitted(bench.learner)) == keys(last)


async def test_a_lease_for_a_version_not_yet_here_waits_for_it(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(make=lambda number: make_lease(number, min_version=4))
    async with open_bench(learner) as bench:
        with at_most():
            bench.policies.hold(3)
            learner.give(1)
            await learner.until(lambda: len(learner.granted) == 1)
            await trio.sleep(30)
            assert bench.engine.called_with == []
            bench.policies.hold(4)
            await learner.until(lambda: len(learner.rollouts) == 8)

    assert {r.oldest_version for r in learner.rollouts} == {4}


async def test_a_question_that_waits_does_not_keep_the_node_from_asking_for_a_newer_version(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.policies.hold(0)
            await bench.learner.until(lambda: len(bench.learner.requests) == MAX_LEASES)
            asked_s = trio.current_time()
            bench.policies.hold(1)
            await bench.learner.until(
                lambda: any(r.applied_version == 1 for r in bench.learner.requests)
            )

            assert trio.current_time() - asked_s < 2


async def test_a_large_lease_is_submitted_in_parts(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(make=lambda number: make_lease(number, num_groups=5))
    async with open_bench(learner, max_batch=8) as bench:
        with at_most():
            bench.policies.hold(0)
            learner.give(1)
            await learner.until(lambda: len(learner.rollouts) == 20)

    assert [len(s.rollouts) for s in learner.submissions] == [8, 8, 4]
    assert [num for _, num in bench.engine.called_with] == [8, 8, 4]


async def test_a_refusal_is_told_once_per_reason_and_counted(
    autojump_clock: MockClock,
) -> None:
    def refuse(rollout: Rollout) -> Reason | None:
        return Reason.STALE if rollout.sample_index == 0 else None

    learner = FakeLearner(refuse=refuse)
    async with open_bench(learner) as bench:
        with at_most():
            bench.policies.hold(0)
            learner.give(3)
            await learner.until(lambda: len(learner.rollouts) == 24)
            await trio.sleep(30)

    notices = bench.events("rollouts.refused")
    assert [(n["reason"], n["detail"], n["num_so_far"]) for n in notices] == [
        ("stale", "said so", 1)
    ]
    assert bench.worker.tally.num_accepted == 18
    assert bench.worker.tally.refused == {"stale": 6}
    assert bench.events("work.so_far")[-1]["reasons"] == {"stale": 6}


async def test_rollouts_wait_for_a_learner_that_is_away(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 5
            bench.policies.hold(0)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.granted) == 1)
            await trio.sleep(1)
            bench.hub.partition([LEARNER])
            await trio.sleep(60)
            assert bench.learner.rollouts == []
            assert bench.life.state is NodeState.JOINING
            bench.hub.heal()
            await _reconnect(bench)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)

    assert len(bench.events("rollouts.not_submitted")) == 1


async def test_rollouts_are_handed_in_as_soon_as_the_learner_is_back(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 5
            bench.policies.hold(0)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.granted) == 1)
            await trio.sleep(1)
            bench.hub.partition([LEARNER])
            await trio.sleep(100)
            bench.hub.heal()
            await _reconnect(bench)
            await bench.learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            with trio.fail_after(1):
                await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)


async def _reconnect(bench: Bench) -> None:
    """Do what discovery does."""
    await bench.network.connect(PeerInfo(peer=LEARNER, addresses=(LEARNER_AT,)))


async def test_a_learner_that_restarted_gets_a_heartbeat_before_the_rollouts_again(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(refuse_whole=[Reason.NOT_A_MEMBER], next_heartbeat_s=3600)
    async with open_bench(learner) as bench:
        with at_most():
            bench.policies.hold(0)
            await learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            await trio.sleep(1)
            num_beats = len(learner.beats)
            learner.give(1)
            await learner.until(lambda: len(learner.rollouts) == 8)

    assert learner.refuse_whole == []
    assert len(learner.beats) == num_beats + 1


async def test_rollouts_whose_verdicts_got_lost_are_not_told_as_refused(
    autojump_clock: MockClock,
) -> None:
    def refuse(_: Rollout) -> Reason | None:
        return Reason.DUPLICATE if len(learner.submissions) > 1 else None

    learner = FakeLearner(lose_verdicts=1, refuse=refuse)
    async with open_bench(learner) as bench:
        with at_most():
            bench.policies.hold(0)
            learner.give(1)
            await learner.until(lambda: len(learner.submissions) == 2)
            await trio.sleep(1)

            assert bench.worker.num_rollouts_in_hand == 0
    assert bench.worker.tally.num_accepted == 8
    assert bench.events("rollouts.refused") == []


async def test_a_lease_that_the_learner_does_not_know_is_given_up(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(refuse_whole=[Reason.UNKNOWN_LEASE])
    async with open_bench(learner) as bench:
        with at_most():
            bench.policies.hold(0)
            learner.give(2)
            await learner.until(lambda: len(learner.rollouts) == 8)
            await trio.sleep(1)

            assert bench.worker.num_rollouts_in_hand == 0
    assert bench.worker.tally.refused == {"unknown_lease": 8}
    assert [e["lease"] for e in bench.events("lease.lost")] == ["lease-0001"]


async def test_a_lease_past_its_deadline_is_not_worked_on(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(make=lambda number: make_lease(number, deadline_step=7))
    async with open_bench(learner) as bench:
        with at_most():
            bench.engine.seconds_per_call = 20
            bench.policies.hold(0)
            learner.give(2)
            await learner.until(lambda: len(learner.granted) == 2)
            await trio.sleep(1)
            learner.step = 8
            await trio.sleep(60)

    assert learner.rollouts == []
    assert len(bench.engine.called_with) == 1
    assert len(bench.events("lease.lost")) == 2


async def test_when_the_engine_dies_its_leases_go_back_and_the_node_works_on(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 10
            bench.policies.hold(0)
            bench.learner.give(2)
            await bench.learner.until(lambda: len(bench.learner.granted) == 2)
            await trio.sleep(1)
            bench.engine_dies()
            await bench.learner.until(lambda: len(bench.learner.returned) == 2)
            assert {r.lease_id for r in bench.learner.returned} == {"lease-0001", "lease-0002"}
            assert "killed" in bench.learner.returned[0].why
            await trio.sleep(5)
            assert bench.learner.states[-1] is NodeState.SYNCING
            bench.engine_comes_back()
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)

    assert bench.engine.loaded == [0, 0]
    assert bench.learner.beats[-1].num_engine_restarts == 1
    assert {r.group_id // 100 for r in bench.learner.rollouts} == {3}


async def test_work_that_the_engine_refuses_goes_back_with_the_reason(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.refuses_work = True
            bench.policies.hold(0)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.returned) == 1)

    assert "prompt too long" in bench.learner.returned[0].why


async def test_what_the_engine_does_not_do_is_told_with_the_next_heartbeat_until_it_does(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.refuses_work = True
            bench.policies.hold(0)
            bench.learner.give(1)
            await bench.learner.until(lambda: any(beat.trouble for beat in bench.learner.beats))
            trouble = bench.learner.beats[-1].trouble
            bench.engine.refuses_work = False
            bench.learner.give(1)
            await bench.learner.until(lambda: bench.learner.beats[-1].trouble is None)

    assert trouble is not None
    assert trouble.kind is TroubleKind.SAMPLE
    assert "prompt too long" in trouble.detail


async def test_a_version_that_the_engine_refuses_leaves_the_old_one_working(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.refuses_versions = {1}
            bench.policies.hold(0)
            await bench.learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            bench.policies.hold(1)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)

    assert {r.oldest_version for r in bench.learner.rollouts} == {0}
    assert bench.learner.beats[-1].applied_version == 0
    trouble = bench.learner.beats[-1].trouble
    assert trouble is not None
    assert trouble.kind is TroubleKind.APPLY
    assert trouble.detail.startswith("version 1: ")
    assert len(bench.events("policy.refused")) == 1


async def test_an_engine_that_dies_of_a_version_comes_back_on_the_old_one(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.policies.hold(0)
            await bench.learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            bench.engine.deaths_left = {1: 2}
            bench.policies.hold(1)
            for _ in range(2):
                await bench.engine.has_died.wait()
                bench.engine.has_died = trio.Event()
                bench.engine_dies()
                await trio.sleep(1)
                bench.engine_comes_back()
            await bench.learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)

    assert bench.engine.loaded == [0, 0, 0]
    assert {r.oldest_version for r in bench.learner.rollouts} == {0}
    assert bench.learner.beats[-1].applied_version == 0
    assert len(bench.events("policy.refused")) == 1


async def test_a_version_that_the_engine_refused_is_tried_again_now_and_then(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.refuses_versions = {1}
            bench.policies.hold(0)
            await bench.learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            bench.policies.hold(1)
            # A lack of memory, say, that is over some time later.
            await trio.sleep(1.5 * RETRY_REFUSED_S)
            assert bench.learner.beats[-1].applied_version == 0
            bench.engine.refuses_versions = set()
            await trio.sleep(2 * RETRY_REFUSED_S)
            assert bench.learner.beats[-1].applied_version == 1

    assert len(bench.events("policy.refused")) == 2


async def test_a_version_that_is_refused_again_and_again_is_tried_less_and_less(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.refuses_versions = {1}
            bench.policies.hold(0)
            await bench.learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            bench.policies.hold(1)
            await trio.sleep(3.5 * RETRY_REFUSED_S)

    # At once, after that time, and after three times that.
    assert len(bench.events("policy.refused")) == 3


async def test_an_engine_that_was_killed_twice_over_the_only_version_gets_it_again(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.deaths_left = {0: 2}
            bench.policies.hold(0)
            for _ in range(2):
                await bench.engine.has_died.wait()
                bench.engine.has_died = trio.Event()
                bench.engine_dies()
                await trio.sleep(1)
                bench.engine_comes_back()
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)

    assert {r.oldest_version for r in bench.learner.rollouts} == {0}


async def test_an_engine_that_dies_once_of_a_version_has_it_in_the_end(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.policies.hold(0)
            await bench.learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            bench.engine.deaths_left = {1: 1}
            bench.policies.hold(1)
            await bench.engine.has_died.wait()
            bench.engine_dies()
            bench.engine_comes_back()
            await bench.learner.until(lambda: bench.learner.beats[-1].applied_version == 1)

    assert bench.engine.loaded == [0, 0, 1]
    assert bench.events("policy.refused") == []


async def test_a_node_on_standby_asks_for_nothing_and_stays_up_to_date(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(directive=Directive.STANDBY)
    async with open_bench(learner) as bench:
        with at_most():
            bench.policies.hold(0)
            learner.give(5)
            await learner.until(lambda: bench.life.state is NodeState.STANDBY)
            bench.policies.hold(1)
            await learner.until(lambda: learner.beats[-1].applied_version == 1)

    assert learner.requests == []


async def test_draining_finishes_what_is_begun_and_gives_back_the_rest(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 10
            bench.policies.hold(0)
            bench.learner.give(2)
            await bench.learner.until(lambda: len(bench.learner.granted) == 2)
            await trio.sleep(1)
            bench.stop()
            await bench.life.wait_left()

    (returned,) = bench.learner.returned
    assert len(bench.learner.rollouts) == 8
    assert {r.group_id // 100 for r in bench.learner.rollouts}.isdisjoint(
        {int(returned.lease_id[-4:])}
    )
    assert bench.learner.states[-2:] == [NodeState.ACTIVE, NodeState.DRAINING]


async def test_draining_does_not_wait_for_ever(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 10_000
            bench.policies.hold(0)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.granted) == 1)
            await trio.sleep(1)
            stopped_s = trio.current_time()
            bench.stop()
            await bench.life.wait_left()

            assert trio.current_time() - stopped_s < DRAIN_S + 10
    assert [r.lease_id for r in bench.learner.returned] == ["lease-0001"]


async def test_draining_gives_up_soon_on_a_learner_that_is_gone(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 10_000
            bench.policies.hold(0)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.granted) == 1)
            await trio.sleep(1)
            bench.hub.kill(LEARNER)
            stopped_s = trio.current_time()
            bench.stop()
            await bench.life.wait_left()
            await bench.membership.say_goodbye()

            assert trio.current_time() - stopped_s < 12
    assert bench.events("work.dropped")


async def test_a_paused_node_finishes_what_the_engine_is_at_and_gives_back_the_rest(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.engine.seconds_per_call = 10
            bench.policies.hold(0)
            bench.learner.give(2)
            await bench.learner.until(lambda: len(bench.learner.granted) == 2)
            await trio.sleep(1)
            bench.life.happened(OwnerPaused())
            bench.worker.rest(is_wanted=True)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)
            await bench.learner.until(lambda: len(bench.learner.returned) == 1)
            num_requests = len(bench.learner.requests)
            bench.policies.hold(1)
            await trio.sleep(60)

            assert len(bench.learner.requests) == num_requests
            assert bench.engine.loaded == [0]
            assert bench.learner.beats[-1].state is NodeState.PAUSED
            assert bench.worker.num_rollouts_in_hand == 0

            bench.life.happened(OwnerResumed())
            bench.worker.rest(is_wanted=False)
            bench.learner.give(1)
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 16)
    assert bench.engine.loaded == [0, 1]


async def test_a_node_with_nothing_in_hand_leaves_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        with at_most():
            bench.policies.hold(0)
            await bench.learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            bench.stop()
            with at_most(1):
                await bench.life.wait_left()


async def test_a_learner_at_another_address_is_worked_for_again(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner()
    async with open_bench(learner) as bench:
        with at_most():
            bench.policies.hold(0)
            await learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            bench.hub.kill(LEARNER)
            while bench.life.state is not NodeState.JOINING:  # noqa: ASYNC110 - virtual clock
                await trio.sleep(1)
            again = FakeLearner()
            async with bench.hub.network(make_key(1), address="/ip4/10.8.8.8/tcp/1") as theirs:
                again.serve(theirs)
                again.give(1)
                await bench.network.connect(
                    PeerInfo(peer=LEARNER, addresses=("/ip4/10.8.8.8/tcp/1",))
                )
                with at_most(LOOK_S + 30):
                    await again.until(lambda: len(again.rollouts) == 8)
    assert len(bench.events("learner.silent")) == 1


async def test_when_the_node_is_stopped_no_task_is_left(autojump_clock: MockClock) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    async with open_bench() as bench:
        bench.policies.hold(0)
        bench.learner.give(1)
        with at_most():
            await bench.learner.until(lambda: bool(bench.learner.rollouts))

    assert trio.lowlevel.current_statistics().tasks_living == before
