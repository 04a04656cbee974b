"""A plan: the cheapest that keeps the learner busy, or what would be."""

from itertools import pairwise, product
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from echo2swarm.plan.assumptions import (
    EXAMPLE,
    Assumptions,
    CentralTable,
    LimitsTable,
    OfferTable,
    PlanLearnerTable,
    PlanRolloutTable,
    WeightsTable,
)
from echo2swarm.plan.options import PlanInputs
from echo2swarm.plan.plan import make_plan
from echo2swarm.scheduling.capacity import BindingLimit
from echo2swarm.scheduling.selection import Effort


def offer(name: str, **keys: object) -> OfferTable:
    known: dict[str, object] = {"rollouts_per_s": 1.0, "usd_per_hour": 0.5, "count": 50, **keys}
    return OfferTable(name=name, **known)  # type: ignore[arg-type]


def assumptions(*offers: OfferTable, **tables: object) -> Assumptions:
    known: dict[str, object] = {
        "learner": PlanLearnerTable(
            prompts_per_step=8, group_size=8, train_s=10.0, usd_per_hour=6.0
        ),
        "rollouts": PlanRolloutTable(rollout_s=4.0, headroom=0.1, sureness=0.0),
        "offer": offers,
        **tables,
    }
    return Assumptions(**known)  # type: ignore[arg-type]


def test_the_cheapest_kind_is_taken_and_no_more_of_it_than_is_needed() -> None:
    plan = make_plan(assumptions(offer("dear", usd_per_hour=0.6), offer("cheap")))

    assert plan.best is not None
    # 6.4 rollouts/s are consumed, 7.04 with headroom.
    assert plan.best.nodes == {"cheap": 8}
    assert plan.best.forecast.utilisation == 1
    assert isclose(plan.best.usd_per_step, (6 + 8 * 0.5) * 10 / 3600)


def test_of_bounds_that_cost_the_same_the_smallest_is_taken() -> None:
    plan = make_plan(assumptions(offer("x")))

    assert plan.best is not None
    assert plan.best.max_staleness == 2
    assert plan.best.min_staleness == 2
    assert [o.max_staleness for o in plan.by_staleness] == list(range(7))


def test_a_small_bound_is_bought_with_more_nodes() -> None:
    tight = make_plan(assumptions(offer("x"), limits=LimitsTable(max_staleness=1)))

    assert tight.best is not None
    # 64 rollouts within 10 - 4 s, and a tenth more.
    assert tight.best.nodes == {"x": 12}


def test_on_policy_the_learner_waits_and_the_curve_says_so() -> None:
    plan = make_plan(assumptions(offer("x"), limits=LimitsTable(max_staleness=0)))

    assert plan.best is None
    (only,) = plan.by_staleness
    assert not only.is_enough
    assert 0.3 < only.forecast.utilisation < 0.8
    assert only.forecast.binds is BindingLimit.LATENCY
    assert plan.shortfall is not None
    assert plan.shortfall.max_staleness == 1


def test_the_period_of_publication_is_chosen_by_what_the_best_nodes_for_it_cost() -> None:
    # Found fast, publishing every third step seems cheapest; it is not with the best nodes.
    market = assumptions(
        offer("a", rollouts_per_s=0.9, usd_per_hour=0.68, count=2, upload_mbit=80.0),
        offer("b", rollouts_per_s=0.7, usd_per_hour=0.91, count=4, upload_mbit=40.0),
        offer("c", rollouts_per_s=1.5, usd_per_hour=0.85, count=3, upload_mbit=20.0),
        offer("d", rollouts_per_s=2.0, usd_per_hour=1.18, count=3, upload_mbit=40.0),
        learner=PlanLearnerTable(
            prompts_per_step=8, group_size=8, train_s=10.0, usd_per_hour=6.0, upload_mbit=80.0
        ),
        weights=WeightsTable(payload_mb=40.0),
        limits=LimitsTable(min_staleness=4, max_staleness=4),
    )
    question = PlanInputs(market)
    exact = [question.option(4, every, effort=Effort.EXACT) for every in range(1, 6)]

    best = make_plan(market).best

    assert best is not None
    assert best.usd_per_step == min(o.usd_per_step for o in exact if o.is_enough)


def test_the_waiting_plan_has_as_many_nodes_as_pay_off() -> None:
    few = make_plan(assumptions(offer("x", usd_per_hour=5.0), limits=LimitsTable(max_staleness=0)))
    many = make_plan(assumptions(offer("x", usd_per_hour=0.1), limits=LimitsTable(max_staleness=0)))

    assert few.by_staleness[0].num_nodes < many.by_staleness[0].num_nodes


def test_too_few_offers_come_with_what_is_missing() -> None:
    plan = make_plan(assumptions(offer("x", count=3)))

    assert plan.best is None
    assert plan.shortfall is not None
    assert plan.shortfall.add is not None
    assert (plan.shortfall.add.count, plan.shortfall.add.like) == (5, "x")


def test_an_empty_market_is_an_answer() -> None:
    plan = make_plan(assumptions())

    assert plan.best is None
    assert all(option.nodes == {} for option in plan.by_staleness)
    assert all(option.forecast.utilisation == 0 for option in plan.by_staleness)


def test_a_budget_that_is_too_small_comes_with_one_that_is_not() -> None:
    plan = make_plan(assumptions(offer("x"), limits=LimitsTable(max_usd_per_hour=2.0)))

    assert plan.best is None
    assert plan.shortfall is not None
    assert plan.shortfall.max_usd_per_hour == pytest.approx(4.0)


def links(**weights: float) -> Assumptions:
    return assumptions(
        offer("x", upload_mbit=80.0, download_mbit=160.0),
        learner=PlanLearnerTable(
            prompts_per_step=8, group_size=8, train_s=10.0, usd_per_hour=6.0, upload_mbit=80.0
        ),
        weights=WeightsTable(**weights),
    )


def test_heavier_weights_ask_for_a_larger_bound() -> None:
    light, heavy = make_plan(links(payload_mb=20.0)), make_plan(links(payload_mb=150.0))

    assert light.best is not None
    assert heavy.best is not None
    assert light.best.broadcast_s == pytest.approx(1.15 * 20 / 10)
    assert heavy.best.max_staleness > light.best.max_staleness


def test_versions_are_published_no_more_often_than_they_can_be_sent() -> None:
    plan = make_plan(links(payload_mb=150.0))

    assert plan.best is not None
    # 150 MB at 10 MB/s take 1.15 x 15 s; a step takes 10 s.
    assert plan.best.publish_every == 2


def test_a_fixed_period_of_publication_is_kept() -> None:
    plan = make_plan(assumptions(offer("x"), limits=LimitsTable(publish_every=3)))

    assert plan.best is not None
    assert plan.best.publish_every == 3
    assert [o.max_staleness for o in plan.by_staleness] == [2, 3, 4, 5, 6]


def test_a_period_of_publication_that_no_bound_allows_leaves_nothing() -> None:
    limits = LimitsTable(max_staleness=3, publish_every=5)

    plan = make_plan(assumptions(offer("x"), limits=limits))

    assert plan.best is None
    assert plan.by_staleness == ()
    assert plan.shortfall is None


def test_the_saving_is_against_machines_beside_the_learner() -> None:
    central = CentralTable(
        rollouts_per_s=4.0, usd_per_hour=4.0, colocated_rollouts_per_s=6.4, name="big"
    )
    plan = make_plan(assumptions(offer("x"), central=central))

    beside, colocated = plan.baselines
    assert beside.num_machines == 2
    assert beside.usd_per_step == pytest.approx((6 + 8) * 10 / 3600)
    assert beside.saving == pytest.approx(1 - 10 / 14)
    assert colocated.period_s == 20
    assert colocated.usd_per_step == pytest.approx(6 * 20 / 3600)
    assert colocated.saving == pytest.approx(1 - 10 * 10 / (6 * 20))


def test_without_a_plan_nothing_is_saved() -> None:
    central = CentralTable(rollouts_per_s=4.0, usd_per_hour=4.0)

    assert make_plan(assumptions(central=central)).baselines[0].saving is None


def test_nodes_that_come_and_go_are_provided_for() -> None:
    steady = make_plan(
        assumptions(offer("x"), rollouts=PlanRolloutTable(rollout_s=4.0, sureness=1.8))
    )
    flighty = make_plan(
        assumptions(
            offer("x", availability=0.8), rollouts=PlanRolloutTable(rollout_s=4.0, sureness=1.8)
        )
    )

    assert steady.best is not None
    assert flighty.best is not None
    assert flighty.best.num_nodes > steady.best.num_nodes / 0.8


@settings(max_examples=15, deadline=None)
@given(
    rates=st.lists(st.floats(0.2, 4), min_size=1, max_size=3),
    prices=st.lists(st.floats(0.05, 3), min_size=3, max_size=3),
)
def test_no_counts_of_the_kinds_do_the_same_for_less(
    rates: list[float], prices: list[float]
) -> None:
    offers = [
        offer(f"kind-{i}", rollouts_per_s=rate, usd_per_hour=price, count=4)
        for i, (rate, price) in enumerate(zip(rates, prices, strict=False))
    ]
    plan = make_plan(assumptions(*offers, limits=LimitsTable(min_staleness=2, max_staleness=2)))

    costs = [
        sum(n * o.usd_per_hour for n, o in zip(counts, offers, strict=True))
        for counts in product(range(5), repeat=len(offers))
        if sum(n * o.rollouts_per_s for n, o in zip(counts, offers, strict=True)) >= 7.04
    ]
    if not costs:
        assert plan.best is None
    else:
        assert plan.best is not None
        assert plan.best.nodes_usd_per_hour == pytest.approx(min(costs), rel=1e-6)


def test_the_example_has_a_plan_that_saves() -> None:
    plan = make_plan(EXAMPLE)

    assert plan.best is not None
    assert plan.best.is_enough
    assert 0 < (plan.baselines[0].saving or 0) < 1


def test_more_bound_never_costs_more() -> None:
    fixed = structs.replace(EXAMPLE, central=None)
    costs = [o.usd_per_step for o in make_plan(fixed).by_staleness if o.is_enough]

    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(costs))
