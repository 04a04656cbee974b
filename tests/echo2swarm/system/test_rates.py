"""Rates, shares and phases over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.capacity import RecentValues
from echo2swarm.system.rates import LearnerPhase, Timeline, WindowSum, WorkingRate
from learner.state.progress import p95_or_none


def test_a_rate_is_over_the_window_or_what_has_passed_of_it() -> None:
    window = WindowSum(10.0, started_s=100.0)
    window.add(6, 102.0)

    assert window.per_s(103.0) == pytest.approx(2.0)
    assert window.per_s(112.0) == pytest.approx(0.6)
    assert window.per_s(112.1) == 0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 9)), max_size=30))
def test_a_window_holds_exactly_what_was_added_in_it(events: list[tuple[float, int]]) -> None:
    window = WindowSum(10.0, started_s=0.0)
    now_s = 0.0
    added = []
    for wait_s, amount in events:
        now_s += wait_s
        window.add(amount, now_s)
        added.append((now_s, amount))

    expected = sum(amount for at_s, amount in added if at_s >= now_s - 10.0)
    assert window.per_s(now_s) == pytest.approx(expected / max(1.0, min(10.0, now_s)))


def test_waiting_for_work_does_not_make_a_node_slow() -> None:
    rate = WorkingRate(half_life_s=1e9)
    rate.set_working(True, 0.0)
    rate.add(20, 10.0)
    rate.set_working(False, 10.0)

    rate.set_working(True, 10_000.0)
    rate.add(20, 10_010.0)

    assert rate.per_s() == pytest.approx(2.0)


def test_a_node_that_becomes_slow_is_seen_to() -> None:
    rate = WorkingRate(half_life_s=10.0)
    rate.set_working(True, 0.0)
    rate.add(100, 10.0)
    rate.add(10, 110.0)

    assert rate.per_s() == pytest.approx(0.1, rel=0.02)


def test_the_speed_of_who_has_not_worked_is_not_known() -> None:
    rate = WorkingRate(half_life_s=10.0)

    assert rate.per_s() is None


def test_a_timeline_tells_phases_apart() -> None:
    timeline = Timeline(0.0)
    timeline.enter(LearnerPhase.WAITING, 10.0)
    timeline.enter(LearnerPhase.TRAINING, 13.0)
    took_s = timeline.enter(LearnerPhase.WAITING, 20.0)

    assert took_s == 7.0
    assert timeline.phase is LearnerPhase.WAITING
    assert timeline.totals_s(21.0) == {
        LearnerPhase.STARTING: 10,
        LearnerPhase.WAITING: 4,
        LearnerPhase.TRAINING: 7,
    }
    assert timeline.shares(21.0, 1000.0) == pytest.approx(
        {LearnerPhase.WAITING: 4 / 11, LearnerPhase.TRAINING: 7 / 11}
    )
    assert timeline.shares(21.0, 2.0) == pytest.approx(
        {LearnerPhase.WAITING: 0.5, LearnerPhase.TRAINING: 0.5}
    )


@given(st.lists(st.tuples(st.sampled_from(LearnerPhase), st.floats(0, 50)), max_size=20))
def test_shares_add_up_to_one(changes: list[tuple[LearnerPhase, float]]) -> None:
    timeline, now_s = Timeline(0.0), 0.0
    for phase, wait_s in changes:
        now_s += wait_s
        timeline.enter(phase, now_s)

    shares = timeline.shares(now_s, 60.0)

    assert not shares or sum(shares.values()) == pytest.approx(1.0)
    assert sum(timeline.totals_s(now_s).values()) == pytest.approx(now_s)


def test_the_last_value_is_remembered_however_old() -> None:
    values = RecentValues(10.0)
    values.add(1.0, 0.0)
    values.add(2.0, 5.0)

    assert values.get(12.0) == [2.0]
    assert values.get(1000.0) == [2.0]
    assert RecentValues(10.0).get(0.0) == []


def test_the_95th_percentile_of_few_values_is_the_largest() -> None:
    assert p95_or_none([]) is None
    assert p95_or_none([3.0, 1.0, 2.0]) == 3.0
    assert p95_or_none([float(i) for i in range(100)]) == 95.0
