"""Leasing rules one by one, and the accounting of groups under anything that can happen."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.group_table import MAX_UNSCORABLE, SampleStatus
from echo2swarm.scheduling.leases.groups import DropReason
from echo2swarm.scheduling.leases.lease_book import LeaseRecord, LeaseState, SampleKey
from echo2swarm.scheduling.leases.lease_rules import DispatchRules, NoWork
from echo2swarm.scheduling.leases.open_group import Dropped
from echo2swarm.scheduling.staleness import Freshness, judge_staleness
from protocols.ids import GroupId, LeaseId, PeerId, PolicyVersion
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


def dispatcher(with_rules: DispatchRules | None = None, *, num_prompts: int = 100) -> Dispatcher:
    made = Dispatcher(with_rules or rules())
    made.add_prompts(prompts(num_prompts))
    made.version_published(PolicyVersion(0), 0.0)
    return made


def granted(reply: Lease | NoWork) -> Lease:
    assert isinstance(reply, Lease), reply
    return reply


def record(dispatch: Dispatcher, lease: Lease) -> LeaseRecord:
    found = dispatch.leases.get(lease.lease_id)
    assert found is not None
    return found


def finish(dispatch: Dispatcher, lease: Lease, *, version: int = 0, now_s: float = 0.0) -> None:
    for group_id, index in wanted(lease):
        key = (GroupId(group_id), index)
        dispatch.begin_judging(record(dispatch, lease), key)
        dispatch.accept(record(dispatch, lease), key, accepted(version=version), now_s)


def drain(dispatch: Dispatcher, *, version: int = 0) -> list[Lease]:
    """Lease all that there is, to new nodes each time."""
    leases: list[Lease] = []
    while isinstance(
        lease := dispatch.grant(ask(PeerId(f"node-{len(leases)}"), version=version), 0.0), Lease
    ):
        leases.append(lease)
    return leases


def test_a_lease_names_prompts_seeds_and_the_steps_for_which_it_is_good() -> None:
    lease = granted(dispatcher(rules(lease_prompts=2)).grant(ask(), 0.0))

    assert wanted(lease) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (lease.min_version, lease.deadline_step) == (0, 2)
    assert len({spec.seed for group in lease.groups for spec in group.samples}) == 4


def test_seeds_are_the_same_in_two_runs_and_differ_when_leased_again() -> None:
    first, second = dispatcher(), dispatcher()
    lease = granted(first.grant(ask(), 0.0))
    first.end_lease(record(first, lease), LeaseState.RETURNED, 1.0)
    again = granted(first.grant(ask(BOB), 1.0))

    assert granted(second.grant(ask(), 0.0)).groups == lease.groups
    assert wanted(again) == wanted(lease)
    assert {s.seed for s in again.groups[0].samples}.isdisjoint(
        s.seed for s in lease.groups[0].samples
    )


def test_no_more_is_leased_than_can_be_fresh_when_its_turn_comes() -> None:
    dispatch = dispatcher(rules(max_staleness=2, groups_per_step=2))

    # Version 0 serves the updates 0, 1, 2; but two steps' worth is the learner's pace.
    assert len(drain(dispatch)) == 4


def test_no_more_is_leased_than_the_steps_that_are_left_can_use() -> None:
    dispatch = dispatcher(rules(max_staleness=5, groups_per_step=2, num_steps=3))
    leases = drain(dispatch)
    dispatch.advance(2, 0.0)

    assert len(leases) == 6
    assert isinstance(dispatch.grant(ask(BOB), 0.0), NoWork)


def test_at_staleness_zero_one_step_of_work_is_leased_and_only_for_the_current_version() -> None:
    dispatch = dispatcher(rules(max_staleness=0, groups_per_step=2))
    leases = drain(dispatch)
    for lease in leases:
        finish(dispatch, lease)
    dispatch.take(list(dispatch.ready))
    dispatch.advance(1, 0.0)

    with_old = dispatch.grant(ask(version=0), 0.0)
    dispatch.version_published(PolicyVersion(1), 0.0)
    with_new = dispatch.grant(ask(version=1), 0.0)

    assert len(leases) == 2
    assert with_old == NoWork("version 0 is too old for update 1")
    assert granted(with_new).min_version == 1


def test_a_node_with_a_version_that_was_never_published_gets_nothing() -> None:
    assert isinstance(dispatcher().grant(ask(version=3), 0.0), NoWork)


def test_a_node_holds_a_bounded_number_of_leases() -> None:
    dispatch = dispatcher(rules(max_leases_per_node=2, groups_per_step=10))
    first = dispatch.grant(ask(), 0.0)
    while_unknown = dispatch.grant(ask(), 0.0)
    finish(dispatch, granted(first), now_s=1.0)

    replies = [dispatch.grant(ask(), 1.0) for _ in range(3)]
    assert isinstance(while_unknown, NoWork)
    assert "speed is not known yet" in while_unknown.why
    assert [isinstance(reply, Lease) for reply in replies] == [True, True, False]


def test_a_node_that_takes_fewer_completions_than_a_group_gets_a_part_of_one() -> None:
    dispatch = dispatcher(rules(group_size=4))
    first = granted(dispatch.grant(ask(max_completions=3), 0.0))
    second = granted(dispatch.grant(ask(BOB, max_completions=3), 0.0))

    assert wanted(first) == [(0, 0), (0, 1), (0, 2)]
    assert wanted(second) == [(0, 3)]


def test_the_rest_of_a_group_goes_to_nobody_who_would_make_it_older() -> None:
    dispatch = dispatcher(rules(groups_per_step=3))
    dispatch.version_published(PolicyVersion(1), 0.0)
    part = granted(dispatch.grant(ask(BOB, version=1, max_completions=1), 0.0))
    older = granted(dispatch.grant(ask(ALICE, version=0), 0.0))
    newer = granted(dispatch.grant(ask(PeerId("carol"), version=1), 0.0))

    assert [wanted(lease) for lease in (part, older, newer)] == [
        [(0, 0)],
        [(1, 0), (1, 1)],
        [(0, 1)],
    ]


def test_only_the_samples_that_an_expired_lease_lacks_are_leased_again() -> None:
    dispatch = dispatcher()
    lease = granted(dispatch.grant(ask(), 0.0))
    key = (GroupId(0), 0)
    dispatch.begin_judging(record(dispatch, lease), key)
    dispatch.accept(record(dispatch, lease), key, accepted(), 1.0)

    overdue = dispatch.leases.overdue(now_s=10.0, next_step=0)
    for late, state in overdue:
        dispatch.end_lease(late, state, 10.0)

    assert [state for _, state in overdue] == [LeaseState.TIMED_OUT]
    assert wanted(granted(dispatch.grant(ask(BOB), 10.0))) == [(0, 1)]


def test_a_lease_is_over_when_the_learner_is_past_its_deadline_step() -> None:
    dispatch = dispatcher(rules(max_staleness=1))
    lease = granted(dispatch.grant(ask(), 0.0))
    dispatch.advance(1, 0.0)
    at_deadline = dispatch.leases.overdue(now_s=0.0, next_step=1)
    dispatch.advance(2, 0.0)

    assert at_deadline == []
    assert [
        (late.lease_id, state) for late, state in dispatch.leases.overdue(now_s=0.0, next_step=2)
    ] == [(lease.lease_id, LeaseState.TOO_OLD)]


def test_a_late_result_is_taken_once_and_the_second_one_is_not() -> None:
    dispatch = dispatcher()
    first = granted(dispatch.grant(ask(), 0.0))
    dispatch.end_lease(record(dispatch, first), LeaseState.TIMED_OUT, 10.0)
    second = granted(dispatch.grant(ask(BOB), 10.0))
    key = (GroupId(0), 0)

    before = dispatch.status_of(key)
    dispatch.begin_judging(record(dispatch, first), key)
    dispatch.accept(record(dispatch, first), key, accepted(), 11.0)

    assert before is SampleStatus.OPEN
    assert dispatch.status_of(key) is SampleStatus.TAKEN
    assert record(dispatch, second).state is LeaseState.ACTIVE


def test_a_bad_result_sends_the_sample_to_another_node_first() -> None:
    dispatch = dispatcher(rules(groups_per_step=1, max_staleness=0))
    lease = granted(dispatch.grant(ask(ALICE), 0.0))
    dispatch.refuse(record(dispatch, lease), (GroupId(0), 0), 1.0)
    dispatch.refuse(record(dispatch, lease), (GroupId(0), 1), 1.0)
    dispatch.version_published(PolicyVersion(0), 0.0)

    assert wanted(granted(dispatch.grant(ask(BOB), 1.0))) == [(0, 0), (0, 1)]


def test_a_bad_late_result_does_not_take_the_sample_from_its_new_holder() -> None:
    dispatch = dispatcher(rules(groups_per_step=1, max_staleness=0))
    first = granted(dispatch.grant(ask(ALICE), 0.0))
    dispatch.end_lease(record(dispatch, first), LeaseState.TIMED_OUT, 10.0)
    granted(dispatch.grant(ask(BOB), 10.0))
    dispatch.refuse(record(dispatch, first), (GroupId(0), 0), 11.0)

    assert isinstance(dispatch.grant(ask(PeerId("carol")), 11.0), NoWork)


def test_a_node_gets_back_what_it_failed_on_if_there_is_nothing_else_to_do() -> None:
    dispatch = dispatcher(rules(groups_per_step=1, max_staleness=0))
    lease = granted(dispatch.grant(ask(ALICE), 0.0))
    good = (GroupId(0), 1)
    dispatch.refuse(record(dispatch, lease), (GroupId(0), 0), 1.0)
    dispatch.begin_judging(record(dispatch, lease), good)
    dispatch.accept(record(dispatch, lease), good, accepted(), 1.0)

    assert wanted(granted(dispatch.grant(ask(ALICE), 1.0))) == [(0, 0)]


@pytest.mark.parametrize("is_unscorable", [True, False])
def test_a_group_is_given_up_sooner_if_it_is_the_verifier_that_fails(is_unscorable: bool) -> None:
    dispatch = dispatcher(
        rules(groups_per_step=1, max_staleness=0, max_attempts=MAX_UNSCORABLE + 1)
    )
    dropped: list[Dropped | None] = []
    for _ in range(MAX_UNSCORABLE):
        lease = granted(dispatch.grant(ask(), 0.0))
        assert wanted(lease)[0] == (0, 0)
        keys = [(GroupId(0), index) for index in range(2)]
        for key in keys:
            dispatch.begin_judging(record(dispatch, lease), key)
        dropped += [
            dispatch.refuse(record(dispatch, lease), key, 1.0, is_unscorable=is_unscorable)[0]
            for key in keys
        ]

    given_up = Dropped(GroupId(0), DropReason.GAVE_UP)
    assert [each for each in dropped if each] == ([given_up] if is_unscorable else [])
    assert (GroupId(0) in dispatch.open_groups) is not is_unscorable
    assert dispatch.leases.num_of_peer(ask().peer) == 0


def test_a_verifier_that_fails_now_and_then_costs_no_group() -> None:
    dispatch = dispatcher(rules(group_size=8, lease_prompts=1))
    for index in range(8):
        lease = granted(dispatch.grant(ask(), 0.0))
        key = (GroupId(0), index)
        dispatch.begin_judging(record(dispatch, lease), key)
        assert dispatch.refuse(record(dispatch, lease), key, 1.0, is_unscorable=True)[0] is None
        dispatch.end_lease(record(dispatch, lease), LeaseState.RETURNED, 1.0)

    assert GroupId(0) in dispatch.open_groups


def test_a_group_is_given_up_after_too_many_attempts_at_one_sample() -> None:
    dispatch = dispatcher(rules(max_attempts=2))
    dropped: list[Dropped] = []
    for _ in range(2):
        lease = granted(dispatch.grant(ask(), 0.0))
        dropped += dispatch.end_lease(record(dispatch, lease), LeaseState.RETURNED, 1.0)[1]

    assert dropped == [Dropped(GroupId(0), DropReason.GAVE_UP)]
    assert wanted(granted(dispatch.grant(ask(), 0.0))) == [(1, 0), (1, 1)]


def test_a_group_with_a_result_too_old_is_dropped_and_told_so() -> None:
    dispatch = dispatcher(rules(max_staleness=1))
    lease = granted(dispatch.grant(ask(), 0.0))
    key = (GroupId(0), 0)
    dispatch.begin_judging(record(dispatch, lease), key)
    dispatch.accept(record(dispatch, lease), key, accepted(version=0), 1.0)

    dropped = [dispatch.advance(step, 0.0) for step in (1, 2)]

    assert dropped == [[], [Dropped(GroupId(0), DropReason.STALE)]]
    assert dispatch.status_of((GroupId(0), 1)) is SampleStatus.STALE


def test_the_last_result_ends_the_lease_and_says_how_long_it_took() -> None:
    dispatch = dispatcher()
    lease = granted(dispatch.grant(ask(), 2.0))
    ends = []
    for index in (0, 1):
        key = (GroupId(0), index)
        dispatch.begin_judging(record(dispatch, lease), key)
        ends.append(dispatch.accept(record(dispatch, lease), key, accepted(), 5.0)[1])

    assert ends[0] is None
    assert ends[1] is not None
    assert (ends[1].state, ends[1].took_s) == (LeaseState.DONE, 3.0)


def test_a_restored_group_asks_only_for_what_it_lacks() -> None:
    dispatch = Dispatcher(rules(), next_step=1)
    dispatch.version_published(PolicyVersion(1), 0.0)
    dispatch.restore(GroupId(4), b"\1\0\0\0", [accepted(version=1), None])
    dispatch.restore(GroupId(5), b"\1\0\0\0", [accepted(version=1), accepted(version=1)])

    assert wanted(granted(dispatch.grant(ask(version=1), 0.0))) == [(4, 1)]
    assert [group.group_id for group in dispatch.ready] == [5]


class Accounting(RuleBasedStateMachine):
    """Nodes that come, go, lie and lag; a learner that trains whenever it can."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.step = 0
        self.newest = 0
        self.leased: set[int] = set()
        self.outcomes: dict[int, str] = {}
        self.num_taken: dict[SampleKey, int] = {}
        self.leases: list[LeaseId] = []
        self.leasing_rules = rules(max_staleness=1, headroom=0.5, lease_prompts=2, max_attempts=4)
        self.dispatch = dispatcher(self.leasing_rules, num_prompts=1000)

    def note(self, *dropped: Dropped | None) -> None:
        for drop in dropped:
            if drop is not None:
                assert drop.group_id not in self.outcomes, "a group ended twice"
                self.outcomes[drop.group_id] = drop.reason

    @rule(peer=st.sampled_from([ALICE, BOB]), lag=st.integers(0, 1), size=st.integers(1, 5))
    def ask_for_work(self, peer: PeerId, lag: int, size: int) -> None:
        version = max(0, self.newest - lag)
        reply = self.dispatch.grant(ask(peer, version=version, max_completions=size), self.now_s)
        if isinstance(reply, Lease):
            self.leased |= {group.group_id for group in reply.groups}
            self.leases.append(LeaseId(reply.lease_id))
            assert reply.num_completions <= size

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), is_good=st.booleans(), lag=st.integers(0, 1))
    def submit(self, data: st.DataObject, is_good: bool, lag: int) -> None:
        lease = self.dispatch.leases.get(data.draw(st.sampled_from(self.leases)))
        assert lease is not None
        key = data.draw(st.sampled_from(sorted(lease.samples)))
        if self.dispatch.status_of(key) is not SampleStatus.OPEN:
            self.dispatch.settle(lease, key, self.now_s)
            return
        version = max(lease.min_version, self.newest - lag)
        fresh = judge_staleness(version=version, step=self.dispatch.next_step, max_staleness=1)
        if is_good and fresh is Freshness.ADMIT:
            self.dispatch.begin_judging(lease, key)
            self.dispatch.accept(lease, key, accepted(version=version), self.now_s)
            self.num_taken[key] = self.num_taken.get(key, 0) + 1
        else:
            self.note(self.dispatch.refuse(lease, key, self.now_s)[0])

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        for lease, state in self.dispatch.leases.overdue(
            now_s=self.now_s, next_step=self.dispatch.next_step
        ):
            self.note(*self.dispatch.end_lease(lease, state, self.now_s)[1])

    @rule(peer=st.sampled_from([ALICE, BOB]))
    def node_is_back(self, peer: PeerId) -> None:
        self.dispatch.node_is_back(peer, "session-1")

    @rule(peer=st.sampled_from([ALICE, BOB]))
    def node_is_lost(self, peer: PeerId) -> None:
        for lease in self.dispatch.leases.of_peer(peer):
            self.note(*self.dispatch.end_lease(lease, LeaseState.NODE_LOST, self.now_s)[1])

    @rule()
    def train(self) -> None:
        formed = self.dispatch.form(self.now_s)
        for group in formed.stale:
            self.note(self.dispatch.drop(group.group_id, DropReason.STALE))
        if formed.batch is None:
            return
        formed.batch.assert_fresh(max_staleness=1)
        self.dispatch.take(formed.batch.groups)
        for group in formed.batch.groups:
            assert group.group_id not in self.outcomes, "a group ended twice"
            self.outcomes[group.group_id] = "trained"
        self.note(*self.dispatch.advance(self.step + 1, self.now_s))
        self.step += 1

    @precondition(lambda self: self.newest < self.step)
    @rule()
    def publish(self) -> None:
        self.newest = self.step
        self.dispatch.version_published(PolicyVersion(self.newest), self.now_s)

    @invariant()
    def no_sample_is_taken_twice(self) -> None:
        assert all(count == 1 for count in self.num_taken.values())

    @invariant()
    def every_leased_prompt_is_open_ready_or_ended_in_exactly_one_way(self) -> None:
        open_groups = set(self.dispatch.open_groups)
        ready = {group.group_id for group in self.dispatch.ready}
        ended = set(self.outcomes)
        assert open_groups | ready | ended == self.leased
        assert len(open_groups) + len(ready) + len(ended) == len(self.leased)

    @invariant()
    def outstanding_work_is_bounded(self) -> None:
        assert self.dispatch.num_outstanding <= self.leasing_rules.max_groups_outstanding

    def teardown(self) -> None:
        """However it got here, honest work ends every group that is left."""
        self.publish_if_new()
        for _ in range(200):
            self.time_passes(20)
            if isinstance(
                lease := self.dispatch.grant(ask(PeerId("carol"), version=self.newest), self.now_s),
                Lease,
            ):
                self.leased |= {group.group_id for group in lease.groups}
                for group_id, index in wanted(lease):
                    key = (GroupId(group_id), index)
                    found = self.dispatch.leases.get(lease.lease_id)
                    assert found is not None
                    self.dispatch.begin_judging(found, key)
                    self.dispatch.accept(found, key, accepted(version=self.newest), self.now_s)
            self.train()
            self.publish_if_new()
        stuck = set(self.dispatch.open_groups) - set(
            sorted(self.leased)[-self.leasing_rules.max_groups_outstanding :]
        )
        assert not stuck
        assert self.step > 20

    def publish_if_new(self) -> None:
        if self.newest < self.step:
            self.publish()


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
