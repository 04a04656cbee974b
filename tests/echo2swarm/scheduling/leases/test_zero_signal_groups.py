"""Groups without signal make room for others, within bounds."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.group_table import SampleStatus
from echo2swarm.scheduling.leases.groups import CompleteGroup, DropReason
from echo2swarm.scheduling.leases.lease_rules import DispatchRules
from echo2swarm.scheduling.leases.open_group import Dropped
from echo2swarm.scheduling.leases.zero_signal_groups import ZeroSignalGroups, is_equal
from protocols.ids import GroupId, PolicyVersion
from protocols.leases import Lease
from tests.echo2swarm.scheduling.leases.samples import accepted, ask, prompts, rules, wanted


def dispatcher(max_replaced: int = 4, **keys: int) -> Dispatcher:
    leasing: DispatchRules = replace(rules(**keys), max_replaced=max_replaced)
    dispatch = Dispatcher(leasing)
    dispatch.add_prompts(prompts(200))
    dispatch.version_published(PolicyVersion(0), 0.0)
    return dispatch


def finish(
    dispatch: Dispatcher, rewards: tuple[float, float], *, version: int = 0, now_s: float = 0.0
) -> Dropped | None:
    """Lease a group, and hand its two results in."""
    lease = dispatch.grant(ask(version=version), now_s)
    assert isinstance(lease, Lease)
    record = dispatch.leases.get(lease.lease_id)
    assert record is not None
    dropped = None
    for (group_id, index), reward in zip(wanted(lease), rewards, strict=True):
        key = (GroupId(group_id), index)
        dispatch.begin_judging(record, key)
        rollout = accepted(version=version, reward=reward)
        status, _, dropped = dispatch.accept(record, key, rollout, now_s + 1)
        assert status is SampleStatus.OPEN
    return dropped


def test_a_group_whose_completions_are_worth_the_same_is_dropped_when_it_is_complete() -> None:
    dispatch = dispatcher()

    dropped = finish(dispatch, (1.0, 1.0))

    assert dropped is not None
    assert dropped.reason is DropReason.EQUAL
    assert len(dispatch.ready) == 0
    assert dispatch.form(1.0).batch is None


def test_another_prompt_takes_its_place() -> None:
    dispatch = dispatcher(max_staleness=0)
    finish(dispatch, (0.0, 0.0))
    finish(dispatch, (0.0, 1.0))
    finish(dispatch, (1.0, 0.0))

    batch = dispatch.form(1.0).batch

    assert batch is not None
    assert [group.group_id for group in batch.groups] == [1, 2]


def test_by_default_all_are_kept() -> None:
    dispatch = dispatcher(max_replaced=0)

    assert finish(dispatch, (1.0, 1.0)) is None

    assert len(dispatch.ready) == 1
    assert dispatch.equal_groups.num_kept == 1


def test_a_task_without_any_signal_does_not_starve_the_learner() -> None:
    dispatch = dispatcher(max_replaced=4)
    for step in range(3):
        num_made = 0
        while (batch := dispatch.form(float(step)).batch) is None:
            finish(dispatch, (0.0, 0.0))
            num_made += 1
        assert num_made == 4 + 2
        assert dispatch.equal_groups.num_kept == 2
        dispatch.take(batch.groups)
        dispatch.advance(step + 1, float(step))
        dispatch.version_published(PolicyVersion(step + 1), float(step))


def test_the_replaced_count_per_update_and_start_anew() -> None:
    dispatch = dispatcher()
    finish(dispatch, (0.0, 0.0))
    assert dispatch.equal_groups.num_replaced == 1

    dispatch.advance(1, 1.0)

    assert dispatch.equal_groups.num_replaced == 0


def test_who_is_late_with_a_result_for_a_replaced_group_did_nothing_wrong() -> None:
    dispatch = dispatcher()
    dropped = finish(dispatch, (0.0, 0.0))
    assert dropped is not None

    assert dispatch.status_of((dropped.group_id, 0)) is SampleStatus.TAKEN


def test_a_group_that_a_crash_left_complete_is_replaced_when_it_is_restored() -> None:
    dispatch = dispatcher()

    equal = dispatch.restore(GroupId(300), b"\1\0\0\0", [accepted(), accepted()])
    unequal = dispatch.restore(GroupId(301), b"\1\0\0\0", [accepted(), accepted(reward=0.0)])
    open_ = dispatch.restore(GroupId(302), b"\1\0\0\0", [accepted(), None])

    assert equal == Dropped(GroupId(300), DropReason.EQUAL)
    assert unequal is None
    assert open_ is None
    assert [group.group_id for group in dispatch.ready] == [301]


def test_more_groups_are_opened_where_fewer_are_used() -> None:
    def num_granted(*, is_teaching: bool) -> int:
        dispatch = dispatcher(max_replaced=100, groups_per_step=4, max_staleness=1)
        for step in range(12):
            for number in range(4 if is_teaching else 8):
                reward = 1.0 if is_teaching or number % 2 else 0.0
                finish(dispatch, (0.0, reward), version=step, now_s=10.0 * step)
            batch = dispatch.form(10.0 * step + 1).batch
            assert batch is not None
            dispatch.take(batch.groups)
            dispatch.advance(step + 1, 10.0 * step + 1)
            dispatch.version_published(PolicyVersion(step + 1), 10.0 * step + 2)
        count = 0
        while isinstance(dispatch.grant(ask(version=12), 112.0), Lease):
            count += 1
        return count

    assert num_granted(is_teaching=False) > 1.5 * num_granted(is_teaching=True) > 0


@given(st.lists(st.booleans(), max_size=200), st.integers(0, 5), st.integers(1, 5))
def test_never_more_than_the_bound_is_replaced_and_the_expectation_is_within_it(
    signals: list[bool], max_per_step: int, groups_per_step: int
) -> None:
    equal = ZeroSignalGroups(max_per_step=max_per_step, groups_per_step=groups_per_step)
    for has_signal in signals:
        rollouts = (accepted(reward=0.0), accepted(reward=float(has_signal)))
        group = CompleteGroup(group_id=GroupId(0), prompt_tokens=b"", rollouts=rollouts)
        assert is_equal(group) is not has_signal

        is_replaced = equal.is_to_be_replaced(group)

        assert not (is_replaced and has_signal)
        assert equal.num_replaced <= max_per_step
        assert groups_per_step <= equal.num_to_get(groups_per_step)
        assert equal.num_to_get(groups_per_step) <= groups_per_step + max_per_step
    if not max_per_step:
        assert equal.used_share == 1
