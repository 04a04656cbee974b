"""Broadcast times of one node."""

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.nodes.broadcast_times import BroadcastTimes


def times(*seconds: float) -> BroadcastTimes:
    measured = BroadcastTimes()
    for each in seconds:
        measured.add(joined_at_s=0.0, published_at_s=10.0, applied_at_s=10.0 + each)
    return measured


def test_nothing_is_known_before_the_first() -> None:
    nothing = times()

    assert (nothing.last_s, nothing.slow_s, nothing.usual_s) == (None, None, None)
    assert not nothing


def test_one_version_that_was_held_up_does_not_set_the_slow_time() -> None:
    assert times(1, 1, 1, 60, 1, 1, 1, 2).slow_s == 2


def test_two_of_eight_that_were_held_up_do() -> None:
    assert times(1, 1, 50, 60, 1, 1, 1, 2).slow_s == 50


def test_of_few_the_slowest_counts() -> None:
    assert times(1, 5, 2).slow_s == 5


def test_the_usual_time_is_the_median() -> None:
    assert times(1, 60, 2, 3, 50).usual_s == 3


def test_a_version_that_was_there_before_the_node_does_not_count() -> None:
    measured = BroadcastTimes()

    assert measured.add(joined_at_s=5.0, published_at_s=4.9, applied_at_s=9.0) is None
    assert not measured
    assert measured.add(joined_at_s=5.0, published_at_s=5.0, applied_at_s=9.0) == 4.0


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_only_the_last_eight_count_and_the_usual_is_never_above_the_slow(
    seconds: list[int],
) -> None:
    measured = times(*seconds)
    slow_s, usual_s = measured.slow_s, measured.usual_s

    assert slow_s is not None
    assert usual_s is not None
    assert usual_s <= slow_s <= max(seconds[-8:])
    assert measured.slow_s == times(*seconds[-8:]).slow_s
    assert measured.last_s == seconds[-1]
