"""What a node is late with is asked of a second one, and taken from whoever is first."""

from dataclasses import replace

import pytest

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.group_table import SampleStatus
from echo2swarm.scheduling.leases.lease_book import LeaseRecord, LeaseState
from echo2swarm.scheduling.leases.lease_rules import NoWork
from protocols.ids import GroupId, PeerId, PolicyVersion
from protocols.leases import Lease
from tests.echo2swarm.scheduling.leases.samples import (
    ALICE,
    BOB,
    accepted,
    ask,
    prompts,
    rules,
    wanted,
)

CAROL = PeerId("carol")


def lease_of(dispatch: Dispatcher, peer: PeerId, now_s: float, *, version: int = 0) -> Lease:
    reply = dispatch.grant(ask(peer, version=version), now_s)
    assert isinstance(reply, Lease), reply
    return reply


def record(dispatch: Dispatcher, lease: Lease) -> LeaseRecord:
    found = dispatch.leases.get(lease.lease_id)
    assert found is not None
    return found


def take(dispatch: Dispatcher, lease: Lease, now_s: float, *, version: int = 0) -> None:
    for group_id, index in wanted(lease):
        key = (GroupId(group_id), index)
        dispatch.begin_judging(record(dispatch, lease), key)
        dispatch.accept(record(dispatch, lease), key, accepted(version=version), now_s)


def train(dispatch: Dispatcher, now_s: float) -> None:
    formed = dispatch.form(now_s)
    assert formed.batch is not None
    dispatch.take(formed.batch.groups)
    dispatch.advance(dispatch.next_step + 1, now_s)
    dispatch.version_published(PolicyVersion(dispatch.next_step), now_s)


def at_work() -> tuple[Dispatcher, Lease, float]:
    """Return a run of one rollout per step and second, and Alice's lease of the last one."""
    dispatch = Dispatcher(rules(groups_per_step=1, max_staleness=0, group_size=1))
    dispatch.add_prompts(prompts(100))
    dispatch.version_published(PolicyVersion(0), 0.0)
    now_s = 0.0
    for step in range(6):
        peer = ALICE if step % 2 else BOB
        lease = lease_of(dispatch, peer, now_s, version=step)
        now_s += 1.0
        take(dispatch, lease, now_s, version=step)
        train(dispatch, now_s)
    return dispatch, lease_of(dispatch, ALICE, now_s, version=6), now_s


def test_nothing_is_asked_twice_while_its_node_may_be_on_time() -> None:
    dispatch, _, now_s = at_work()
    dispatch.form(now_s + 0.5)

    assert isinstance(dispatch.grant(ask(BOB, version=6), now_s + 0.5), NoWork)
    assert dispatch.num_backups == 0


def test_a_late_lease_is_asked_of_another_node_and_the_first_result_is_taken() -> None:
    dispatch, first, now_s = at_work()
    late_s = dispatch.next_late_s()
    assert late_s is not None
    assert late_s < now_s + 3.0  # its timeout is 10 s
    second = lease_of(dispatch, BOB, now_s + 3.0, version=6)

    assert {g for g, _ in wanted(second)} == {g for g, _ in wanted(first)}
    assert dispatch.num_backups == len(wanted(second)) == 1
    take(dispatch, second, now_s + 4.0, version=6)
    key = (GroupId(wanted(second)[0][0]), wanted(second)[0][1])
    assert dispatch.status_for(record(dispatch, first), key) is SampleStatus.ANSWERED
    assert dispatch.status_for(record(dispatch, second), key) is SampleStatus.TAKEN
    train(dispatch, now_s + 4.0)
    assert dispatch.num_backups == 0, "each step may have its own"


def test_the_late_original_may_still_be_first() -> None:
    dispatch, first, now_s = at_work()
    second = lease_of(dispatch, BOB, now_s + 3.0, version=6)
    take(dispatch, first, now_s + 3.5, version=6)
    key = (GroupId(wanted(second)[0][0]), wanted(second)[0][1])

    assert dispatch.status_for(record(dispatch, second), key) is SampleStatus.ANSWERED
    ended = dispatch.settle(record(dispatch, second), key, now_s + 4.0)
    assert ended is not None
    assert ended.state is LeaseState.DONE
    assert len(dispatch.ready) == 1


def test_a_second_copy_of_ones_own_result_is_a_duplicate_not_an_answer_of_others() -> None:
    dispatch, first, now_s = at_work()
    key = (GroupId(wanted(first)[0][0]), wanted(first)[0][1])
    lease = record(dispatch, first)
    dispatch.begin_judging(lease, key)
    while_judged = dispatch.status_for(lease, key)
    dispatch.accept(lease, key, accepted(version=6), now_s + 0.5)

    assert while_judged is SampleStatus.TAKEN
    assert dispatch.status_for(lease, key) is SampleStatus.TAKEN


def test_no_third_node_is_asked() -> None:
    dispatch, _, now_s = at_work()
    lease_of(dispatch, BOB, now_s + 3.0, version=6)
    dispatch.form(now_s + 3.0)

    assert isinstance(dispatch.grant(ask(CAROL, version=6), now_s + 3.5), NoWork)


def test_a_backup_takes_over_when_the_original_is_given_back() -> None:
    dispatch, first, now_s = at_work()
    second = lease_of(dispatch, BOB, now_s + 3.0, version=6)
    dispatch.end_lease(record(dispatch, first), LeaseState.RETURNED, now_s + 3.1)

    assert wanted(second) == wanted(first)
    assert isinstance(dispatch.grant(ask(CAROL, version=6), now_s + 3.2), NoWork)
    dispatch.end_lease(record(dispatch, second), LeaseState.RETURNED, now_s + 3.3)
    assert wanted(lease_of(dispatch, CAROL, now_s + 3.4, version=6)) == wanted(first)


@pytest.mark.parametrize("is_refused", [False, True], ids=["ended", "refused"])
def test_when_a_backup_comes_to_nothing_a_third_node_is_asked(*, is_refused: bool) -> None:
    dispatch, first, now_s = at_work()
    second = lease_of(dispatch, BOB, now_s + 3.0, version=6)
    dispatch.form(now_s + 3.0)
    # Whoever looks finds nothing to ask of others, and the late lease is looked at no more.
    assert isinstance(dispatch.grant(ask(CAROL, version=6), now_s + 3.5), NoWork)
    if is_refused:
        key = (GroupId(wanted(second)[0][0]), wanted(second)[0][1])
        dispatch.begin_judging(record(dispatch, second), key)
        dispatch.refuse(record(dispatch, second), key, now_s + 3.6)
    else:
        dispatch.end_lease(record(dispatch, second), LeaseState.TIMED_OUT, now_s + 3.6)

    assert wanted(lease_of(dispatch, CAROL, now_s + 4.0, version=6)) == wanted(first)
    assert record(dispatch, first).state is LeaseState.ACTIVE


def test_a_bounded_share_of_a_step_is_asked_twice() -> None:
    dispatch = Dispatcher(rules(groups_per_step=20, max_staleness=0, group_size=2))
    dispatch.add_prompts(prompts(1000))
    dispatch.version_published(PolicyVersion(0), 0.0)
    now_s, fast, slow = 0.0, PeerId("fast"), [PeerId(f"slow-{i}") for i in range(20)]
    for step in range(3):
        for peer in (fast, *slow):
            for _ in range(100):
                reply = dispatch.grant(ask(peer, version=step), now_s)
                if isinstance(reply, Lease):
                    take(dispatch, reply, now_s + 0.1, version=step)
        now_s += 10.0
        if dispatch.form(now_s).batch is not None:
            train(dispatch, now_s)
    version = dispatch.next_step
    for peer in slow:
        dispatch.grant(ask(peer, version=version), now_s)
    late = dispatch.form(now_s + 5.0)
    assert late.batch is None
    for _ in range(100):
        dispatch.grant(ask(fast, version=version), now_s + 5.0)

    assert 0 < dispatch.num_backups <= dispatch.rules.max_backups


def held_by_alice() -> tuple[Dispatcher, Lease, float]:
    """Return a run of which Alice has a lease of several rollouts, and holds on to it."""
    dispatch = Dispatcher(rules(groups_per_step=2, max_staleness=0, group_size=4))
    dispatch.add_prompts(prompts(1000))
    dispatch.version_published(PolicyVersion(0), 0.0)
    now_s = 0.0
    while dispatch.next_step < 6:
        version = dispatch.next_step
        for peer in (ALICE, BOB) * 4:
            reply = dispatch.grant(ask(peer, version=version), now_s)
            if isinstance(reply, Lease):
                take(dispatch, reply, now_s + 1.0, version=version)
        now_s += 1.0
        train(dispatch, now_s)
    return dispatch, lease_of(dispatch, ALICE, now_s, version=dispatch.next_step), now_s


def test_a_learner_that_waits_on_has_as_much_asked_twice_as_it_lacks() -> None:
    dispatch, held, now_s = held_by_alice()
    version = dispatch.next_step
    # Bob does the rest, and then what she is late with.
    while dispatch.form(now_s).batch is None:
        assert now_s < 200.0
        now_s += 0.5
        reply = dispatch.grant(ask(BOB, version=version, max_completions=1), now_s)
        if isinstance(reply, Lease):
            take(dispatch, reply, now_s, version=version)

    assert record(dispatch, held).state is LeaseState.ACTIVE
    assert len(wanted(held)) > dispatch.rules.max_backups
    assert dispatch.num_backups == len(wanted(held))


def test_for_a_learner_that_does_not_wait_no_more_than_its_share_is_asked_twice() -> None:
    dispatch, held, now_s = held_by_alice()
    late_s = now_s + 9.0
    for _ in range(20):
        reply = dispatch.grant(ask(BOB, version=dispatch.next_step), late_s)
        if isinstance(reply, Lease):
            take(dispatch, reply, late_s, version=dispatch.next_step)

    assert len(wanted(held)) > dispatch.rules.max_backups
    assert dispatch.num_backups == dispatch.rules.max_backups


def test_a_node_that_was_thought_lost_gets_back_what_nobody_else_has() -> None:
    dispatch, first, now_s = at_work()
    dispatch.end_lease(record(dispatch, first), LeaseState.NODE_LOST, now_s + 1.0)
    revived = dispatch.node_is_back(ALICE, "session-1")
    again = dispatch.grant(ask(BOB, version=6), now_s + 1.1)

    assert [lease.lease_id for lease in revived] == [first.lease_id]
    assert record(dispatch, first).state is LeaseState.ACTIVE
    assert isinstance(again, NoWork)
    assert dispatch.node_is_back(ALICE, "another-session") == []


def test_a_node_that_was_thought_lost_keeps_nothing_that_others_were_asked_for() -> None:
    dispatch, first, now_s = at_work()
    dispatch.end_lease(record(dispatch, first), LeaseState.NODE_LOST, now_s + 1.0)
    second = lease_of(dispatch, BOB, now_s + 1.1, version=6)
    dispatch.node_is_back(ALICE, "session-1")
    take(dispatch, second, now_s + 1.5, version=6)
    key = (GroupId(wanted(first)[0][0]), wanted(first)[0][1])

    assert dispatch.status_for(record(dispatch, first), key) is SampleStatus.ANSWERED


def made_by(
    dispatch: Dispatcher, peers: list[PeerId], now_s: float, *, until_s: float, each_s: float = 0.25
) -> float:
    """Have nodes do, one lease at a time, what they are given, until there is a batch or no time.

    Returns:
        when that was.
    """
    at_work: dict[PeerId, tuple[Lease, float]] = {}
    version = dispatch.next_step
    while dispatch.form(now_s).batch is None and now_s < until_s:
        for peer in peers:
            if peer in at_work and at_work[peer][1] <= now_s:
                take(dispatch, at_work.pop(peer)[0], now_s, version=version)
            if peer not in at_work:
                reply = dispatch.grant(ask(peer, version=version), now_s)
                if isinstance(reply, Lease):
                    at_work[peer] = reply, now_s + each_s * reply.num_completions
        now_s += 0.05
    return now_s


def synchronous(*, until_step: int = 6) -> tuple[Dispatcher, float]:
    """Return a run with S = 0, two groups of four a step, after some steps of Alice and Bob."""
    dispatch = Dispatcher(
        replace(rules(groups_per_step=2, max_staleness=0, group_size=4), lease_timeout_s=1000.0)
    )
    dispatch.add_prompts(prompts(1000))
    dispatch.version_published(PolicyVersion(0), 0.0)
    now_s = 0.0
    for _ in range(until_step):
        now_s = made_by(dispatch, [ALICE, BOB], now_s, until_s=now_s + 100.0)
        train(dispatch, now_s)
    return dispatch, now_s


def test_a_node_that_is_late_itself_is_not_asked_for_what_others_are_late_with() -> None:
    dispatch, began_s = synchronous()
    version = dispatch.next_step
    for peer in (ALICE, BOB):  # both hang
        lease_of(dispatch, peer, began_s, version=version)
    now_s = began_s
    while now_s < began_s + 30.0:
        now_s += 0.1
        assert dispatch.form(now_s).batch is None
        dispatch.grant(ask(BOB, version=version), now_s)

    assert dispatch.num_backups == 0
    assert made_by(dispatch, [CAROL], now_s, until_s=now_s + 30.0) < now_s + 10.0


def test_a_node_of_unknown_speed_does_what_the_learner_waits_for_and_others_are_late_with() -> None:
    dispatch, began_s = synchronous()
    hanging = {ALICE, BOB}
    while hanging:
        reply = dispatch.grant(ask(peer := min(hanging), version=dispatch.next_step), began_s)
        hanging -= {peer} if isinstance(reply, NoWork) else set()
    ended_s = made_by(dispatch, [CAROL], began_s, until_s=began_s + 100.0)

    assert ended_s < began_s + 15.0


def test_the_first_leases_of_a_run_are_done_by_others_if_their_node_hangs() -> None:
    dispatch, _ = synchronous(until_step=0)
    lease_of(dispatch, ALICE, 0.0)

    assert made_by(dispatch, [BOB], 0.0, until_s=100.0) < 15.0


def test_a_node_that_came_back_and_hangs_is_late_as_any_other() -> None:
    dispatch, first, now_s = at_work()
    dispatch.end_lease(record(dispatch, first), LeaseState.NODE_LOST, now_s + 1.0)
    assert dispatch.next_late_s() is None
    dispatch.node_is_back(ALICE, "session-1")

    assert dispatch.next_late_s() is not None
    assert wanted(lease_of(dispatch, BOB, now_s + 5.0, version=6)) == wanted(first)


def test_a_backup_that_is_late_after_its_original_was_given_up_is_asked_of_a_third_node() -> None:
    dispatch, first, now_s = at_work()
    second = lease_of(dispatch, BOB, now_s + 3.0, version=6)
    for late_s in (3.1, 9.0):
        dispatch.grant(ask(BOB, version=6), now_s + late_s)
    dispatch.end_lease(record(dispatch, first), LeaseState.TIMED_OUT, now_s + 9.1)
    dispatch.form(now_s + 9.1)

    assert wanted(lease_of(dispatch, CAROL, now_s + 9.2, version=6)) == wanted(second)
    assert record(dispatch, second).state is LeaseState.ACTIVE
