import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.broadcast.cases import CASES, Case, least_s, quick
from benchmarks.wan import Link

RATES = st.floats(min_value=1, max_value=1000)
LINKS = st.builds(Link, up_mbit_per_s=RATES, down_mbit_per_s=RATES)
FAST = Link(up_mbit_per_s=1000, down_mbit_per_s=1000)


def test_a_slow_source_must_still_send_everything_once() -> None:
    slow = Link(up_mbit_per_s=10, down_mbit_per_s=1000)

    assert least_s(1_000_000, slow, [FAST] * 8) == pytest.approx(0.8 * 1514 / 1448)


def test_a_slow_downlink_must_take_everything() -> None:
    slow = Link(up_mbit_per_s=1000, down_mbit_per_s=10)

    assert least_s(1_000_000, FAST, [FAST, slow]) == pytest.approx(0.8 * 1514 / 1448)


def test_slow_uplinks_must_carry_a_copy_for_each_peer() -> None:
    slow = Link(up_mbit_per_s=1, down_mbit_per_s=1000)
    source = Link(up_mbit_per_s=10, down_mbit_per_s=1000)

    least = least_s(1_000_000, source, [slow] * 10)

    assert least == pytest.approx(10 * 0.8 / 2 * 1514 / 1448)


@given(
    size_bytes=st.integers(1, 10**9), source=LINKS, peers=st.lists(LINKS, min_size=1, max_size=9)
)
def test_a_further_peer_never_makes_it_sooner_than_without_its_uplink(
    size_bytes: int, source: Link, peers: list[Link]
) -> None:
    one_more = [*peers, Link(up_mbit_per_s=0.001, down_mbit_per_s=1000)]

    assert least_s(size_bytes, source, one_more) >= 0.999 * least_s(size_bytes, source, peers)


def test_peers_that_die_or_lie_are_not_waited_for() -> None:
    case = Case(name="x", what="x", peers=(FAST,) * 8, num_killed=2, num_garbage=1)

    assert case.honest == (1, 2, 3, 4, 5)


def test_every_case_has_another_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_peers_together_never_get_more_than_two_cores_can_carry(case: Case) -> None:
    total_mbit_per_s = sum(link.down_mbit_per_s for link in case.peers)

    assert total_mbit_per_s <= 250


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_quick_case_is_the_same_swarm_with_less_to_carry(case: Case) -> None:
    assert quick(case).links == case.links
    assert quick(case).least_s < 10
