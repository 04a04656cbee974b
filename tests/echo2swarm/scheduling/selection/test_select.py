"""The cheapest set that keeps the learner busy; never more than is allowed; always an answer."""

import random
from dataclasses import replace
from math import inf, isinf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2swarm.scheduling.capacity import LearnerLoad
from echo2swarm.scheduling.selection import Effort, Limits, Need, NodeOffer, select
from echo2swarm.scheduling.selection.reasons import MAX_CHARS
from tests.echo2swarm.scheduling.selection.markets import (
    cheapest,
    is_allowed,
    need,
    offer,
    random_case,
    suffices,
)

NO_LIMITS = Limits()
EFFORTS = pytest.mark.parametrize("effort", list(Effort))


def chosen(
    offers: list[NodeOffer],
    need: Need | None,
    limits: Limits = NO_LIMITS,
    *,
    effort: Effort = Effort.EXACT,
) -> dict[str, int]:
    return select(offers, need, limits, effort=effort).chosen


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_set_is_that_of_trying_them_all(seed: int) -> None:
    offers, wanted, limits = random_case(seed, max_offers=9)
    best = cheapest(offers, wanted, limits)

    found = select(offers, wanted, limits)

    assert found.is_feasible is not isinf(best)
    if found.is_feasible:
        assert found.usd_per_hour == pytest.approx(best, rel=1e-5)
        assert found.method == "exact"
        assert found.bound_usd_per_hour is not None
        assert found.bound_usd_per_hour <= best * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(200, 240))
def test_it_is_also_where_every_second_of_broadcast_and_every_deviation_counts(seed: int) -> None:
    rng = random.Random(seed)
    offers, wanted, limits = random_case(seed, max_offers=9)
    offers = [
        replace(o, rollouts_per_s_std=rng.uniform(0.1, 0.7) * (o.rollouts_per_s or 0.0))
        for o in offers
    ]
    load = wanted.workload
    wanted = replace(
        wanted,
        z=1.8,
        # Even an instant broadcast leaves less than a step to generate in.
        rollout_s=(load.max_staleness - load.publish_every + 0.3) * load.train_s,
        workload=replace(load, rollouts_per_step=max(1, load.rollouts_per_step // 4)),
        payload_bytes=rng.uniform(1e6, 10e6),
    )
    best = cheapest(offers, wanted, limits)

    found = select(offers, wanted, limits)

    assert found.is_feasible is not isinf(best)
    if found.is_feasible:
        assert found.usd_per_hour == pytest.approx(best, rel=1e-5)
        assert found.method == "exact"


@pytest.mark.parametrize("seed", range(100, 120))
def test_kinds_of_which_there_are_many_are_counted_right(seed: int) -> None:
    offers, wanted, limits = random_case(seed, max_offers=4, max_count=4)
    best = cheapest(offers, wanted, limits)

    found = select(offers, wanted, limits)

    assert found.is_feasible is not isinf(best)
    if found.is_feasible:
        assert found.usd_per_hour == pytest.approx(best, rel=1e-5)


@EFFORTS
@given(seed=st.integers(1000, 100_000), max_count=st.sampled_from([1, 3]))
@settings(max_examples=25, deadline=None)
def test_what_is_chosen_is_allowed_and_what_is_said_to_suffice_does(
    effort: Effort, seed: int, max_count: int
) -> None:
    offers, wanted, limits = random_case(seed, max_offers=8, max_count=max_count)

    found = select(offers, wanted, limits, effort=effort)

    counts = [found.choices[o.key].count for o in offers]
    eased = replace(
        limits,
        max_usd_per_hour=limits.max_usd_per_hour and limits.max_usd_per_hour * (1 + 2e-6),
    )
    assert all(0 <= n <= o.count for n, o in zip(counts, offers, strict=True))
    assert is_allowed(offers, counts, eased)
    assert found.num_nodes == sum(counts)
    assert found.usd_per_hour == pytest.approx(
        sum(n * o.usd_per_hour for n, o in zip(counts, offers, strict=True))
    )
    if found.is_feasible:
        assert suffices(offers, counts, replace(wanted, headroom=wanted.headroom - 1e-5))
    assert (found.shortfall is None) is found.is_feasible
    for choice in found.choices.values():
        assert choice.why.startswith("active" if choice.is_active else "standby")
        assert len(choice.why) <= MAX_CHARS


@EFFORTS
@given(seed=st.integers(0, 100_000), random=st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_the_order_of_the_offers_does_not_matter(effort: Effort, seed: int, random: object) -> None:
    offers, wanted, limits = random_case(seed, max_offers=8)
    shuffled = list(offers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert select(shuffled, wanted, limits, effort=effort) == select(
        offers, wanted, limits, effort=effort
    )


@EFFORTS
def test_a_good_uploader_pays_for_others(effort: Effort) -> None:
    # Two workers that can't upload cost little; the source alone serves one of them in time.
    slow = {"upload_bytes_per_s": 0.0, "download_bytes_per_s": 1e9}
    offers = [
        offer("a", 1.0, 10.0, **slow),
        offer("b", 1.0, 10.0, **slow),
        offer("hub", 1.5, 1.0, upload_bytes_per_s=1e9, download_bytes_per_s=1e9),
    ]
    wanted = need(20.0, payload_bytes=50e6, source_bytes_per_s=1e6)

    assert chosen(offers, wanted, effort=effort) == {"a": 1, "b": 1, "hub": 1}
    assert chosen(offers, replace(wanted, payload_bytes=30e6), effort=effort) == {"a": 1, "b": 1}


@EFFORTS
def test_one_with_a_slow_link_is_left_out_and_told_so(effort: Effort) -> None:
    offers = [
        offer("near", 2.0, 10.0, upload_bytes_per_s=1e6, download_bytes_per_s=1e8),
        offer("far", 1.0, 10.0, upload_bytes_per_s=1e6, download_bytes_per_s=1e5),
    ]
    found = select(offers, need(10.0, payload_bytes=50e6, source_bytes_per_s=1e7), effort=effort)

    assert found.chosen == {"near": 1}
    assert "link" in found.choices["far"].why


@EFFORTS
def test_a_larger_spread_needs_a_larger_reserve(effort: Effort) -> None:
    offers = [offer(f"n{i}", 1.0, 1.0, rollouts_per_s_std=0.3) for i in range(30)]

    steady = select(offers, need(10.0, z=0.0), effort=effort)
    covered = select(offers, need(10.0, z=1.8), effort=effort)

    assert steady.num_nodes == 10
    # 12 supply 12 - 1.8 x 0.3 x sqrt(12) = 10.1
    assert covered.num_nodes == 12


@EFFORTS
def test_free_nodes_are_taken_first_and_no_more_of_them_than_are_needed(effort: Effort) -> None:
    offers = [offer(f"free{i}", 0.0, 4.0) for i in range(5)] + [offer("dear", 1.0, 100.0)]

    found = select(offers, need(10.0), effort=effort)

    assert found.num_nodes == 3
    assert found.usd_per_hour == 0.0
    assert set(found.chosen) <= {f"free{i}" for i in range(5)}


@EFFORTS
def test_start_up_and_egress_count(effort: Effort) -> None:
    wanted = need(10.0, payload_bytes=1e9, source_bytes_per_s=1e9)
    links = {"upload_bytes_per_s": 1e9, "download_bytes_per_s": 1e9}
    plain = offer("plain", 1.0, 10.0, **links)
    slow_to_start = offer("slow", 0.9, 10.0, startup_s=600, expected_stay_s=1800, **links)
    pays_egress = offer("egress", 0.9, 10.0, egress_usd_per_gb=0.01, **links)

    assert chosen([plain, slow_to_start], wanted, effort=effort) == {"plain": 1}
    assert chosen([plain, replace(slow_to_start, expected_stay_s=1e6)], wanted, effort=effort) == {
        "slow": 1
    }
    # One version in 100 s: 36 GB/h.
    assert chosen([plain, pays_egress], wanted, effort=effort) == {"plain": 1}
    assert chosen([plain, pays_egress], replace(wanted, payload_bytes=1e8), effort=effort) == {
        "egress": 1
    }


def test_everybody_works_until_the_need_is_known_and_the_cheapest_where_limits_bind() -> None:
    offers = [offer("a", 3.0), offer("b", 1.0, None), offer("c", 2.0)]

    assert chosen(offers, None) == {"a": 1, "b": 1, "c": 1}
    assert chosen(offers, None, Limits(max_nodes=2)) == {"b": 1, "c": 1}
    assert chosen(offers, None, Limits(max_usd_per_hour=3.5)) == {"b": 1, "c": 1}
    assert chosen(offers, None, Limits(max_node_usd_per_hour=1.5)) == {"b": 1}
    assert select(offers, None).needed_rollouts_per_s is None


@EFFORTS
def test_all_that_may_work_if_it_is_not_enough(effort: Effort) -> None:
    offers = [offer("a", 3.0), offer("b", 1.0, None), offer("c", 2.0), offer("d", 9.0)]

    found = select(offers, need(10.0), Limits(max_node_usd_per_hour=5.0), effort=effort)

    assert found.chosen == {"a": 1, "b": 1, "c": 1}
    assert not found.is_feasible
    assert "max_node_usd_per_hour" in found.choices["d"].why


def test_of_what_is_not_enough_the_most_that_the_limits_allow_works() -> None:
    offers = [offer("a", 3.0, 3.5), offer("b", 1.0, 1.0), offer("c", 2.0, 1.5)]

    assert chosen(offers, need(10.0), Limits(max_nodes=1)) == {"a": 1}
    # The best value first: a and b cost 4 and make 4.5; the others would be 5 and 5.
    assert chosen(offers, need(10.0), Limits(max_usd_per_hour=4.0)) == {"a": 1, "b": 1}


def test_a_slow_link_does_not_matter_where_the_learner_waits_anyway() -> None:
    workload = LearnerLoad(rollouts_per_step=100, train_s=1.0, max_staleness=1)
    wanted = Need(workload=workload, rollout_s=0.1, payload_bytes=1e6, source_bytes_per_s=1e6)
    offers = [
        offer("a", 1.0, 1.0, upload_bytes_per_s=1e6, download_bytes_per_s=1e6),
        offer("b", 1.0, 1.0, upload_bytes_per_s=1e6, download_bytes_per_s=1e6),
    ]

    found = select(offers, wanted)

    assert found.chosen == {"a": 1, "b": 1}
    assert not found.is_feasible


def test_on_policy_training_takes_whatever_there_is() -> None:
    workload = LearnerLoad(rollouts_per_step=10, train_s=10.0, max_staleness=0)
    wanted = need(workload=workload, rollout_s=2.0)
    found = select([offer("a", 1.0), offer("b", 2.0)], wanted)

    assert found.chosen == {"a": 1, "b": 1}
    assert found.needed_rollouts_per_s == inf
    assert found.shortfall is not None
    assert found.shortfall.rollouts_per_s == inf
    assert found.shortfall.max_staleness == 1


@EFFORTS
def test_an_empty_market_is_an_answer(effort: Effort) -> None:
    found = select([], need(10.0), effort=effort)

    assert found.chosen == {}
    assert not found.is_feasible
    assert found.shortfall is not None
    assert found.shortfall.rollouts_per_s == pytest.approx(10.0)
    assert found.shortfall.add is None
    assert select([], None).chosen == {}


@EFFORTS
def test_limits_that_contradict_each_other_or_the_need_are_an_answer(effort: Effort) -> None:
    offers = [offer("a", 1.0), offer("b", 2.0, may_stop=False, num_active=1)]

    assert chosen(offers, need(1.0), Limits(max_nodes=0), effort=effort) == {}
    assert chosen(offers, need(1.0), Limits(max_usd_per_hour=0.0), effort=effort) == {}
    # A limit of the owner's goes before the wish to keep a node for a while.
    assert chosen(offers, need(1.0), Limits(max_usd_per_hour=1.0), effort=effort) == {"a": 1}


@EFFORTS
def test_who_delivers_nothing_does_not_work(effort: Effort) -> None:
    offers = [offer("liar", 0.0, 0.0), offer("honest", 1.0, 1.0)]

    for wanted in (need(1.0), need(100.0), None):
        found = select(offers, wanted, effort=effort)
        assert found.chosen == {"honest": 1}
        assert "delivered" in found.choices["liar"].why


@EFFORTS
def test_some_of_unknown_speed_are_tried_although_there_is_enough(effort: Effort) -> None:
    offers = [offer("known", 1.0, 10.0)] + [offer(f"new{i}", 3.0 - i / 10, None) for i in range(4)]
    wanted = need(5.0)

    found = select(offers, wanted, Limits(max_trials=2), effort=effort)
    assert found.chosen == {"known": 1, "new2": 1, "new3": 1}
    # Trials that have begun go on.
    offers = [replace(o, num_active=int(o.key == "new0")) for o in offers]
    found = select(offers, wanted, Limits(max_trials=1), effort=effort)
    assert found.chosen == {"known": 1, "new0": 1}
    assert chosen(offers, wanted, Limits(max_trials=0), effort=effort) == {"known": 1}
    assert chosen(offers, wanted, Limits(max_usd_per_hour=1.0), effort=effort) == {"known": 1}


@EFFORTS
def test_one_that_may_be_cheaper_is_tried_before_it_replaces_anybody(effort: Effort) -> None:
    known = offer("known", 2.0, 10.0)
    claims = offer("claims", 1.0, 10.0, rollouts_per_s_std=5.0, is_measured=False)
    wanted = need(8.0, z=1.8)

    assert chosen([known, claims], wanted, effort=effort) == {"known": 1, "claims": 1}
    for other in (replace(claims, usd_per_hour=1.9), replace(claims, is_measured=True)):
        assert chosen([known, other], wanted, effort=effort) == {"known": 1}
    shown = replace(claims, is_measured=True, rollouts_per_s_std=0.5)
    assert chosen([known, shown], wanted, effort=effort) == {"claims": 1}


@EFFORTS
def test_one_that_holds_no_weights_yet_counts_for_nothing(effort: Effort) -> None:
    offers = [offer("a", 1.0, 5.0), offer("b", 0.1, 5.0, is_ready=False)]

    assert chosen(offers, need(5.0), effort=effort) == {"a": 1}
    assert chosen(offers, need(8.0), effort=effort) == {"a": 1, "b": 1}


@pytest.mark.parametrize("bad", [nan, inf, -1.0])
@pytest.mark.parametrize(
    "field",
    ["usd_per_hour", "rollouts_per_s", "rollouts_per_s_std", "upload_bytes_per_s", "load_s"],
)
def test_numbers_that_are_none_are_refused_by_name(field: str, bad: float) -> None:
    with pytest.raises(ValueError, match=field):
        replace(offer("a", 1.0), **{field: bad})  # type: ignore[arg-type]


def test_needs_and_limits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="headroom"):
        need(1.0, headroom=nan)
    with pytest.raises(ValueError, match="max_usd_per_hour"):
        Limits(max_usd_per_hour=nan)
    with pytest.raises(ValueError, match="max_nodes"):
        Limits(max_nodes=-1)
    with pytest.raises(ValueError, match="active"):
        offer("a", 1.0, num_active=2)
    with pytest.raises(ValueError, match="same key"):
        select([offer("a", 1.0), offer("a", 2.0)], None)


def test_without_time_there_is_still_a_good_answer() -> None:
    offers = [offer(f"n{i:03d}", 1 + (i * 37 % 101) / 100, 1 + i % 7) for i in range(200)]
    found = select(offers, need(50.0), left_s=lambda: 0.0)
    best = select(offers, need(50.0))

    assert (found.method, best.method) == ("time limit", "exact")
    assert found.is_feasible
    assert found.usd_per_hour <= best.usd_per_hour * 1.1
