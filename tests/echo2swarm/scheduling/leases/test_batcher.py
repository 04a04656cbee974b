"""No update ever uses a rollout older than S."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.leases.batcher import TrainingBatch, form
from echo2swarm.scheduling.leases.groups import CompleteGroup
from protocols.ids import GroupId
from tests.echo2swarm.scheduling.leases.samples import accepted


def group(group_id: int, *versions: int) -> CompleteGroup:
    return CompleteGroup(
        group_id=GroupId(group_id),
        prompt_tokens=b"\1\0\0\0",
        rollouts=tuple(accepted(version=version) for version in versions),
    )


def ids(groups: tuple[CompleteGroup, ...]) -> list[int]:
    return [g.group_id for g in groups]


def test_whole_groups_are_taken_the_oldest_usable_first() -> None:
    ready = [group(1, 5), group(3, 4), group(2, 5), group(0, 2)]

    formed = form(ready, step=5, groups_per_step=2, max_staleness=1)

    assert formed.batch is not None
    assert ids(formed.batch.groups) == [3, 1]
    assert ids(formed.stale) == [0]


def test_there_is_no_batch_while_groups_lack() -> None:
    formed = form([group(0, 5), group(1, 3)], step=5, groups_per_step=2, max_staleness=1)

    assert formed.batch is None
    assert ids(formed.stale) == [1]


def test_the_oldest_rollout_makes_its_whole_group_stale() -> None:
    formed = form([group(0, 5, 3)], step=5, groups_per_step=1, max_staleness=1)

    assert formed.batch is None
    assert ids(formed.stale) == [0]


def test_a_group_of_a_later_version_waits() -> None:
    formed = form([group(0, 5, 6)], step=5, groups_per_step=1, max_staleness=1)

    assert formed.batch is None
    assert formed.stale == ()


def test_a_batch_counts_its_staleness() -> None:
    batch = TrainingBatch(step=5, groups=(group(0, 5, 4), group(1, 4, 3)))

    assert batch.staleness() == {0: 1, 1: 2, 2: 1}


@pytest.mark.parametrize("version", [2, 6])
def test_using_a_batch_outside_the_bound_is_an_error(version: int) -> None:
    batch = TrainingBatch(step=5, groups=(group(0, 5, version),))

    with pytest.raises(AssertionError, match=f"version {version}"):
        batch.assert_fresh(max_staleness=2)


@given(
    lags=st.lists(st.lists(st.integers(-1, 5), min_size=1, max_size=3), max_size=20),
    step=st.integers(5, 10),
    bound=st.integers(0, 4),
    size=st.integers(1, 4),
)
def test_no_update_ever_uses_a_rollout_older_than_s(
    lags: list[list[int]], step: int, bound: int, size: int
) -> None:
    ready = [group(i, *(step - lag for lag in some)) for i, some in enumerate(lags)]

    formed = form(ready, step=step, groups_per_step=size, max_staleness=bound)

    usable = [g for g in ready if all(0 <= step - r.version <= bound for r in g.rollouts)]
    assert (formed.batch is not None) == (len(usable) >= size)
    if formed.batch is not None:
        formed.batch.assert_fresh(max_staleness=bound)
        assert len(formed.batch.groups) == size
        assert set(ids(formed.batch.groups)).isdisjoint(ids(formed.stale))
        left = [g for g in usable if g not in formed.batch.groups]
        assert all(
            g.oldest_version <= other.oldest_version for g in formed.batch.groups for other in left
        )
