"""What would make an infeasible demand feasible: each wish alone, and checked by granting it."""

from dataclasses import replace
from math import inf

import pytest

from echo2swarm.scheduling.capacity import LearnerLoad
from echo2swarm.scheduling.selection import Limits, Need, NodeOffer, Shortfall, select
from tests.echo2swarm.scheduling.selection.markets import need, offer, random_case

OFFERS = [offer(f"n{i}", 1.0 + i, 2.0) for i in range(6)]


def shortfall(offers: list[NodeOffer], wanted: Need, limits: Limits = Limits()) -> Shortfall:  # noqa: B008
    found = select(offers, wanted, limits)
    assert found.shortfall is not None
    return found.shortfall


def test_a_budget_a_price_or_a_number_that_is_too_small_is_named_with_what_would_do() -> None:
    wanted = need(6.0)

    assert shortfall(OFFERS, wanted, Limits(max_usd_per_hour=5.0)).max_usd_per_hour == 6.0
    assert shortfall(OFFERS, wanted, Limits(max_nodes=2)).max_nodes == 3
    dear = shortfall(OFFERS, wanted, Limits(max_node_usd_per_hour=2.5))
    assert dear.max_node_usd_per_hour == 3.0
    assert dear.rollouts_per_s == pytest.approx(2.0)


def test_nodes_that_lack_are_counted_like_the_best_value_there_is() -> None:
    add = shortfall(OFFERS, need(17.0)).add

    assert add is not None
    assert (add.count, add.like, add.usd_per_hour, add.rollouts_per_s) == (3, "n0", 1.0, 2.0)


def test_a_larger_bound_is_named_where_that_would_do() -> None:
    # Broadcasts of 150 s, updates of 100 s.
    assert shortfall(OFFERS, need(6.0, broadcast_s=185.0)).max_staleness == 3
    assert shortfall(OFFERS, need(60.0, broadcast_s=185.0)).max_staleness is None


def test_nothing_is_named_where_nothing_would_do() -> None:
    lacks = shortfall([], need(6.0), Limits(max_nodes=1))

    assert lacks == Shortfall(rollouts_per_s=6.0)
    hopeless = need(1.0, rollout_s=1e6)
    assert shortfall(OFFERS, hopeless) == Shortfall(rollouts_per_s=inf)


@pytest.mark.parametrize("seed", range(40))
def test_every_wish_does_when_it_is_granted(seed: int) -> None:
    offers, wanted, limits = random_case(seed, max_offers=8)
    workload = replace(wanted.workload, rollouts_per_step=wanted.workload.rollouts_per_step * 2)
    wanted = replace(wanted, workload=workload)
    lacks = select(offers, wanted, limits).shortfall
    if lacks is None:
        return

    for name in ("max_usd_per_hour", "max_node_usd_per_hour", "max_nodes"):
        value = getattr(lacks, name)
        if value is not None:
            assert value > getattr(limits, name)
            assert select(offers, wanted, replace(limits, **{name: value})).is_feasible
    if lacks.max_staleness is not None:
        assert lacks.max_staleness > wanted.workload.max_staleness
        assert select(offers, wanted.with_staleness(lacks.max_staleness), limits).is_feasible
    if lacks.add is not None:
        like = next(o for o in offers if o.key == lacks.add.like)
        joined = replace(like, key="joined", count=lacks.add.count)
        assert select([*offers, joined], wanted, limits).is_feasible


def test_the_demand_of_a_bound_that_is_nearly_too_small_is_finite() -> None:
    workload = LearnerLoad(rollouts_per_step=100, train_s=10.0, max_staleness=1)
    found = select(OFFERS, Need(workload=workload, rollout_s=9.0))

    assert found.needed_rollouts_per_s == pytest.approx(110.0)
