"""Estimates over the last minutes, from clocks and meters that are not always sane."""

from math import inf, isclose, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.capacity import RecentValues, RunningEstimate, percentile_95, prior


def recent(*values: float, window_s: float = 100.0) -> RecentValues:
    window = RecentValues(window_s)
    for at, value in enumerate(values):
        window.add(value, float(at))
    return window


def test_an_estimate_says_how_many_measurements_it_rests_on() -> None:
    found = recent(*range(100)).estimate(99.0)

    assert found == RunningEstimate(p50=49.5, p95=95, num_samples=100)
    assert not found.is_prior


def test_of_nothing_there_is_no_estimate() -> None:
    assert RecentValues(100.0).estimate(0.0) is None
    with pytest.raises(ValueError, match="no values"):
        percentile_95([])


def test_what_is_older_than_the_window_does_not_count() -> None:
    window = recent(1, 2, 3)
    window.add(10, 150.0)

    assert window.estimate(150.0) == RunningEstimate(p50=10, p95=10, num_samples=1)


def test_the_last_measurement_stands_however_old_it_is() -> None:
    assert recent(1, 2, 3).estimate(1e6) == RunningEstimate(p50=3, p95=3, num_samples=1)


@pytest.mark.parametrize("bad", [nan, inf, -inf, -0.1])
def test_what_can_not_have_been_measured_is_refused_and_counted(bad: float) -> None:
    window = recent(5)

    assert not window.add(bad, 1.0)
    assert window.num_refused == 1
    assert window.get(1.0) == [5]


def test_a_clock_that_is_none_is_refused() -> None:
    window = recent(5)

    assert not window.add(1.0, nan)
    assert window.get(nan) == [5]


def test_a_clock_that_jumps_back_makes_nothing_stay_for_ever() -> None:
    window = RecentValues(100.0)
    window.add(1.0, 5000.0)
    window.add(2.0, 5010.0)
    window.add(3.0, 10.0)

    assert window.get(10.0) == [1, 2, 3]
    assert window.get(105.0) == [2, 3]
    assert window.get(111.0) == [3]


def test_a_clock_that_jumps_forward_leaves_the_newest() -> None:
    window = recent(1, 2, 3)
    assert window.get(1e9) == [3]


def test_memory_is_bounded() -> None:
    window = RecentValues(1e9)
    for at in range(5000):
        window.add(at, float(at))

    assert len(window.get(5000.0)) == 2000


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=60), st.floats())
def test_whatever_is_measured_whenever_the_estimate_is_one(
    samples: list[tuple[float, float]], now_s: float
) -> None:
    window = RecentValues(10.0)
    for value, at_s in samples:
        window.add(value, at_s)

    found = window.estimate(now_s)

    assert (found is None) == (window.num_refused == len(samples))
    assert found is None or 0 <= found.p50 <= found.p95


def test_a_prior_is_marked_as_one() -> None:
    assert prior(2.0) == RunningEstimate(p50=2, p95=2, num_samples=0, is_prior=True)
    assert prior(2.0, p95=3.0).p95 == 3


@pytest.mark.parametrize(("p50", "p95"), [(nan, 1), (1, nan), (2, 1), (-1, 1), (1, inf)])
def test_quantiles_that_are_none_are_refused(p50: float, p95: float) -> None:
    with pytest.raises(ValueError, match="quantiles"):
        RunningEstimate(p50=p50, p95=p95, num_samples=1)


@given(st.floats(0.01, 100), st.floats(1, 10))
def test_the_spread_has_the_quantiles_that_were_measured(p50: float, ratio: float) -> None:
    values = RunningEstimate(p50=p50, p95=p50 * ratio, num_samples=9).quantiles(1000)

    assert isclose(values[499], p50, rel_tol=0.01)
    assert isclose(values[949], p50 * ratio, rel_tol=0.02)
    assert list(values) == sorted(values)


def test_without_spread_all_values_are_the_same() -> None:
    assert RunningEstimate(p50=0, p95=3, num_samples=1).quantiles(3) == (0, 0, 0)
    assert RunningEstimate(p50=2, p95=2, num_samples=1).quantiles(3) == (2, 2, 2)


def test_an_estimate_of_times_that_all_vanish_is_fine() -> None:
    assert recent(0, 0).estimate(1.0) == RunningEstimate(p50=0, p95=0, num_samples=2)
