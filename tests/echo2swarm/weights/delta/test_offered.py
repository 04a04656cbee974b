"""Which versions the learner keeps as bases."""

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.weights.delta.offered import PUBLISHES_PER_ANCHOR, bases_to_offer
from protocols.manifest import MAX_DELTAS


def offered_over(num_versions: int, *, max_staleness: int, publish_every: int) -> list[list[int]]:
    """Return the bases of each version of a run, each made from those of the one before."""
    bases: list[list[int]] = [[]]
    for number in range(1, num_versions):
        version = number * publish_every
        candidates = [version - publish_every, *bases[-1]]
        bases.append(
            bases_to_offer(
                candidates,
                version=version,
                max_staleness=max_staleness,
                publish_every=publish_every,
            )
        )
    return bases


def test_the_newest_s_plus_1_versions_and_the_anchor_are_bases() -> None:
    bases = offered_over(60, max_staleness=2, publish_every=1)
    assert bases[1] == [0]
    assert bases[3] == [2, 1, 0]
    assert bases[40] == [39, 38, 37, 0]


def test_a_new_anchor_takes_over_only_when_it_would_go_otherwise() -> None:
    bases = offered_over(60, max_staleness=2, publish_every=1)
    assert bases[50] == [49, 48, 47, 0]
    assert bases[53] == [52, 51, 50, 0]
    assert bases[54] == [53, 52, 51, 50]


def test_anchors_are_counted_in_publishes_not_in_steps() -> None:
    bases = offered_over(60, max_staleness=3, publish_every=4)
    assert bases[56] == [220, 216, 212, 208, 50 * 4]


@given(
    st.sets(st.integers(0, 2000), max_size=80),
    st.integers(0, 2000),
    st.integers(0, 200),
    st.integers(1, 9),
)
def test_bases_are_older_than_the_version_and_as_few_as_a_manifest_may_name(
    candidates: set[int], version: int, max_staleness: int, publish_every: int
) -> None:
    bases = bases_to_offer(
        candidates, version=version, max_staleness=max_staleness, publish_every=publish_every
    )
    assert set(bases) <= {c for c in candidates if c < version}
    assert bases == sorted(set(bases), reverse=True)
    assert len(bases) <= min(MAX_DELTAS, max_staleness + 2)


@given(st.integers(0, 6), st.integers(1, 4))
def test_every_version_older_than_an_anchor_has_one_to_start_from(
    max_staleness: int, publish_every: int
) -> None:
    for bases in offered_over(
        2 * PUBLISHES_PER_ANCHOR + 9, max_staleness=max_staleness, publish_every=publish_every
    )[1:]:
        assert any(base % (PUBLISHES_PER_ANCHOR * publish_every) == 0 for base in bases)
