"""Dividing work among engines loses and repeats nothing, and gives each about as much."""

from hypothesis import given
from hypothesis import strategies as st

from node.engine.shares import shares
from protocols.leases import LeasedGroup, SampleSpec


def group(group_id: int, num_samples: int) -> LeasedGroup:
    samples = tuple(SampleSpec(index, 100 * group_id + index) for index in range(num_samples))
    return LeasedGroup(group_id, b"prompt", samples)


groups = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(
    lambda sizes: [group(number, size) for number, size in enumerate(sizes)]
)


def samples_in(parts: list[tuple[LeasedGroup, ...]]) -> list[tuple[int, int, int]]:
    return sorted((g.group_id, s.index, s.seed) for part in parts for g in part for s in g.samples)


@given(groups, st.integers(1, 5))
def test_each_sample_is_in_exactly_one_share_and_none_is_empty(
    work: list[LeasedGroup], num: int
) -> None:
    parts = shares(work, num)
    assert samples_in(parts) == samples_in([tuple(work)])
    assert all(part and all(g.samples for g in part) for part in parts)
    assert len(parts) <= num


@given(groups, st.integers(1, 5))
def test_no_share_is_larger_than_another_by_more_than_the_largest_piece(
    work: list[LeasedGroup], num: int
) -> None:
    sizes = [sum(len(g.samples) for g in part) for part in shares(work, num)]
    assert max(sizes) - min(sizes) <= max(len(g.samples) for g in work)


def test_groups_stay_whole_while_there_are_enough_of_them() -> None:
    parts = shares([group(1, 4), group(2, 4), group(3, 4)], 2)
    assert sorted(len(g.samples) for part in parts for g in part) == [4, 4, 4]


def test_a_single_group_is_cut_so_that_every_engine_has_work() -> None:
    parts = shares([group(1, 8)], 3)
    assert sorted(len(g.samples) for part in parts for g in part) == [2, 3, 3]


def test_one_engine_gets_the_work_as_it_is() -> None:
    work = [group(1, 3), group(2, 3)]
    assert shares(work, 1) == [tuple(work)]


def test_the_largest_groups_are_placed_first_so_that_shares_come_out_even() -> None:
    parts = shares([group(1, 2), group(2, 2), group(3, 4)], 2)
    assert [sum(len(g.samples) for g in part) for part in parts] == [4, 4]
