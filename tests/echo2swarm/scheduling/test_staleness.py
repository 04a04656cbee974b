"""The staleness bound and the pacing that keeps to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.staleness import (
    Freshness,
    expected_start_s,
    judge_staleness,
    last_usable_step,
    max_groups_outstanding,
    oldest_usable_version,
)

steps = st.integers(0, 10_000)
bounds = st.integers(0, 50)


@given(version=steps, step=steps, bound=bounds)
def test_exactly_the_versions_within_the_bound_are_admitted(
    version: int, step: int, bound: int
) -> None:
    verdict = judge_staleness(version=version, step=step, max_staleness=bound)

    assert (verdict is Freshness.ADMIT) == (0 <= step - version <= bound)
    assert (verdict is Freshness.FROM_THE_FUTURE) == (version > step)


def test_at_zero_only_the_current_version_is_admitted() -> None:
    verdicts = [judge_staleness(version=v, step=5, max_staleness=0) for v in (4, 5, 6)]

    assert verdicts == [Freshness.STALE, Freshness.ADMIT, Freshness.FROM_THE_FUTURE]


@given(version=steps, bound=bounds)
def test_the_last_usable_step_is_the_last_at_which_it_is_admitted(version: int, bound: int) -> None:
    last = last_usable_step(version, max_staleness=bound)

    assert judge_staleness(version=version, step=last, max_staleness=bound) is Freshness.ADMIT
    assert judge_staleness(version=version, step=last + 1, max_staleness=bound) is Freshness.STALE


@given(step=steps, bound=bounds)
def test_the_oldest_usable_version_is_admitted_and_the_one_before_is_not(
    step: int, bound: int
) -> None:
    oldest = oldest_usable_version(step, max_staleness=bound)

    assert judge_staleness(version=oldest, step=step, max_staleness=bound) is Freshness.ADMIT
    if oldest:
        assert (
            judge_staleness(version=oldest - 1, step=step, max_staleness=bound) is Freshness.STALE
        )


@pytest.mark.parametrize(
    ("bound", "every", "expected"), [(0, 1, 16), (1, 1, 18), (2, 1, 36), (2, 2, 18), (1, 2, 16)]
)
def test_outstanding_work_is_what_the_bound_leaves_time_for(
    bound: int, every: int, expected: int
) -> None:
    assert (
        max_groups_outstanding(
            groups_per_step=16, max_staleness=bound, publish_every=every, headroom=0.15
        )
        == expected
    )


@given(
    groups=st.integers(1, 100),
    bound=bounds,
    every=st.integers(1, 51),
    headroom=st.floats(0, 4),
)
def test_one_step_of_work_is_always_allowed(
    groups: int, bound: int, every: int, headroom: float
) -> None:
    allowed = max_groups_outstanding(
        groups_per_step=groups, max_staleness=bound, publish_every=every, headroom=headroom
    )

    assert allowed >= groups


def start(use_step: int, *, now_s: float) -> float:
    return expected_start_s(use_step, next_step=7, last_start_s=100.0, period_s=10.0, now_s=now_s)


def test_updates_start_one_period_after_the_other() -> None:
    assert [start(step, now_s=103.0) for step in (7, 8, 9)] == [110.0, 120.0, 130.0]


def test_a_learner_that_is_late_is_expected_to_be_late_for_as_long_again() -> None:
    assert [start(step, now_s=114.0) for step in (7, 8)] == [118.0, 128.0]


@given(waited_s=st.floats(0, 1e6), needed_s=st.floats(0.01, 1e6))
def test_a_learner_that_waits_long_enough_has_time_for_anybody(
    waited_s: float, needed_s: float
) -> None:
    now_s = 110.0 + waited_s

    assert start(7, now_s=now_s) - now_s == pytest.approx(waited_s, abs=1e-6)
    assert start(7, now_s=110.0 + needed_s) - (110.0 + needed_s) >= needed_s * (1 - 1e-6) - 1e-6
