"""Offers to the selector, of what was measured of a node."""

from math import inf

import pytest

from echo2swarm.scheduling.nodes.node_offer import credible_rates, mean_and_std, node_offer
from echo2swarm.scheduling.selection import NodeOffer
from echo2swarm.scheduling.selection.hysteresis import Dwell
from echo2swarm.scheduling.selection.speed import Presence


def offer(*, is_active: bool, since_s: float, now_s: float = 100.0) -> NodeOffer:
    presence = Presence(0.0)
    return node_offer(
        key="node",
        usd_per_hour=1.0,
        rate=mean_and_std(None, presence, now_s),
        presence=presence,
        dwell=Dwell(is_active, since_s),
        link_bytes_per_s=(1.0, 2.0),
        load_s=0.0,
        startup_s=10.0,
        is_measured=False,
        is_ready=True,
        now_s=now_s,
    )


def test_no_claim_counts_for_more_than_the_fastest_that_was_measured() -> None:
    assert credible_rates([1.0, 50.0], [2.0, 3.0]) == [1.0, 3.0]


def test_before_anything_is_measured_a_claim_counts_for_at_most_twice_the_median() -> None:
    assert credible_rates([1.0, 1.0, 50.0], []) == [1.0, 1.0, 2.0]


def test_where_nobody_claims_anything_there_is_nothing_to_believe() -> None:
    assert credible_rates([], [3.0]) == []


@pytest.mark.parametrize(
    ("is_active", "since_s", "may_start", "may_stop"),
    [
        (True, 81.0, True, False),
        (True, 80.0, True, True),
        (False, 81.0, False, False),
        (False, 80.0, True, True),
        (False, -inf, True, True),
    ],
)
def test_a_node_stays_as_it_was_switched_for_two_start_ups(
    is_active: bool, since_s: float, may_start: bool, may_stop: bool
) -> None:
    made = offer(is_active=is_active, since_s=since_s)

    assert (made.may_start, made.may_stop) == (may_start, may_stop)
    assert made.num_active == is_active


def test_of_an_unknown_speed_nothing_is_made_up() -> None:
    made = offer(is_active=False, since_s=-inf)

    assert (made.rollouts_per_s, made.rollouts_per_s_std) == (None, 0.0)
