"""What is expected of a node follows from its last leases, and errs on the safe side."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.leases.node_pace import MAX_PACES, NodePace, PaceBook
from protocols.ids import PeerId
from tests.echo2swarm.scheduling.leases.samples import ALICE, BOB

times = st.floats(0.01, 1e4)


def pace(*leases: tuple[int, float]) -> NodePace:
    made = NodePace()
    for num_in_hand, took_s in leases:
        made.add(num_in_hand, took_s)
    return made


def test_a_node_that_samples_one_after_the_other_needs_time_for_each() -> None:
    found = pace(*[(size, 0.5 * size) for size in (2, 4, 8, 4, 2, 8) * 3])

    assert found.usual_s(1) == pytest.approx(0.5)
    assert found.usual_s(20) == pytest.approx(10.0)


def test_a_node_that_samples_many_at_once_needs_hardly_more_for_more() -> None:
    found = pace(*[(size, 3.0 + 0.01 * size) for size in (4, 16, 32, 8) * 4])

    assert found.usual_s(64) < 6.0
    assert found.usual_s(1) > 2.0


def test_a_single_size_is_taken_to_say_that_all_of_the_time_grows_with_it() -> None:
    found = pace((8, 4.0), (8, 4.0))

    assert found.usual_s(2) == pytest.approx(1.0)


@given(leases=st.lists(st.tuples(st.integers(1, 64), times), min_size=1, max_size=30))
def test_more_work_is_never_expected_to_take_less_time(leases: list[tuple[int, float]]) -> None:
    found = pace(*leases)

    usual = [found.usual_s(size) for size in (1, 2, 8, 64)]
    assert usual == sorted(usual)
    assert all(found.slow_s(size) >= found.usual_s(size) for size in (1, 64))


@given(
    leases=st.lists(st.tuples(st.integers(1, 64), times), min_size=1, max_size=30),
    seconds=st.floats(0, 1e5),
)
def test_what_is_said_to_be_done_in_time_is_expected_to_be(
    leases: list[tuple[int, float]], seconds: float
) -> None:
    found = pace(*leases)
    num = min(found.num_within(seconds), 1e9)

    if num:
        assert found.slow_s(num) <= seconds * (1 + 1e-6) + 1e-5


def test_few_leases_take_longer_than_expected_of_a_node_that_varies() -> None:
    rng = random.Random(1)
    found, late = NodePace(), 0
    for i in range(400):
        took_s = 4 * rng.lognormvariate(0, 0.4)
        late += i >= 20 and took_s > found.slow_s(4)
        found.add(4, took_s)

    assert late < 400 * 0.12


def test_a_node_that_became_slow_is_known_to_be_after_a_few_leases() -> None:
    found = pace(*[(4, 1.0)] * 20, *[(4, 10.0)] * 5)

    assert found.slow_s(4) > 8.0


def test_the_slowest_node_ranks_lowest_and_equals_rank_equal() -> None:
    book = PaceBook()
    for name, each_s in (("a", 1.0), ("b", 2.0), ("c", 2.0), ("d", 5.0)):
        book.add(PeerId(name), 1, each_s)

    ranks = [book.speed_rank(PeerId(name)) for name in ("a", "b", "c", "d", "nobody")]
    assert ranks == [1.0, 0.5, 0.5, 0.0, 0.5]
    assert book.median_each_s() == 2.0


def test_a_lease_that_was_cut_short_counts_only_as_a_guess_until_one_is_finished() -> None:
    book = PaceBook()
    book.add(ALICE, 4, 2.0, is_done=False)
    guess = book.get(ALICE)
    assert guess is not None
    was_guess = guess.is_guess
    book.add(ALICE, 1, 0.9)
    found = book.get(ALICE)

    assert was_guess
    assert found is not None
    assert not found.is_guess
    assert found.usual_s(1) == pytest.approx(0.9)


def test_a_lease_that_was_cut_short_says_nothing_where_that_was_to_be_expected() -> None:
    book = PaceBook()
    book.add(ALICE, 2, 10.0)
    book.add(ALICE, 2, 3.0, is_done=False)
    found = book.get(ALICE)

    assert found is not None
    assert found.usual_s(2) == pytest.approx(10.0)


def test_a_lease_cut_short_after_longer_than_expected_counts() -> None:
    book = PaceBook()
    book.add(BOB, 2, 1.0)
    book.add(BOB, 2, 30.0, is_done=False)
    found = book.get(BOB)

    assert found is not None
    assert found.usual_s(2) > 10.0
    assert not found.is_guess


def test_a_bounded_number_of_nodes_is_remembered_and_ranked() -> None:
    book = PaceBook()
    for i in range(MAX_PACES + 10):
        book.add(PeerId(str(i)), 1, 1.0 + i)

    assert len(book) == MAX_PACES
    assert book.get(PeerId("0")) is None
    assert book.speed_rank(PeerId(str(MAX_PACES + 9))) == 0.0
