"""What works is kept while it is about right, and nobody is switched back and forth."""

import random
from dataclasses import replace

import pytest

from echo2swarm.scheduling.selection import Effort, Limits, NodeOffer, Selection, select
from tests.echo2swarm.scheduling.selection.markets import need, offer

EFFORTS = pytest.mark.parametrize("effort", list(Effort))
WANTED = need(10.0, headroom=0.1)


def working(offers: list[NodeOffer], *keys: str) -> list[NodeOffer]:
    return [replace(o, num_active=int(o.key in keys)) for o in offers]


@EFFORTS
def test_a_set_is_kept_while_it_supplies_about_what_is_needed(effort: Effort) -> None:
    def kept(rate: float) -> bool:
        offers = [offer("a", 1.0, rate, num_active=1), offer("b", 1.0, 11.5)]
        return select(offers, WANTED, effort=effort).is_kept

    # The band of a headroom of 0.1: from 1.05 to 1.25 times 10/s.
    assert [kept(rate) for rate in (10.4, 10.6, 12.4, 12.6)] == [False, True, True, False]


@EFFORTS
def test_a_set_is_kept_while_no_other_is_a_tenth_cheaper(effort: Effort) -> None:
    def kept(usd: float) -> bool:
        offers = [offer("a", usd, 11.0, num_active=1), offer("b", 1.0, 11.0)]
        return select(offers, WANTED, effort=effort).is_kept

    assert [kept(usd) for usd in (0.9, 1.0, 1.09, 1.12)] == [True, True, True, False]


@EFFORTS
def test_outside_the_band_those_who_work_still_have_an_edge(effort: Effort) -> None:
    def chosen(usd: float) -> set[str]:
        offers = [offer("a", usd, 20.0, num_active=1), offer("b", 1.0, 20.0)]
        return set(select(offers, WANTED, effort=effort).chosen)

    assert chosen(1.1) == {"a"}
    assert chosen(1.2) == {"b"}


@EFFORTS
def test_who_began_a_moment_ago_works_on_but_nobody_gives_way_to_it(effort: Effort) -> None:
    dear = offer("dear", 5.0, 20.0, num_active=1, may_stop=False)
    cheap = offer("cheap", 1.0, 20.0, num_active=1)

    found = select([dear, cheap], WANTED, effort=effort)
    assert found.chosen == {"dear": 1, "cheap": 1}
    assert "moment" in found.choices["dear"].why
    assert found.usd_per_hour == 6.0
    # A limit goes before that.
    for limits in (Limits(max_nodes=1), Limits(max_usd_per_hour=5.5)):
        assert select([dear, cheap], WANTED, limits, effort=effort).chosen == {"cheap": 1}


@EFFORTS
def test_who_stopped_a_moment_ago_rests_unless_it_is_needed(effort: Effort) -> None:
    dear = offer("dear", 5.0, 20.0, num_active=1)
    rests = offer("rests", 1.0, 20.0, may_start=False)

    found = select([dear, rests], WANTED, effort=effort)
    assert found.chosen == {"dear": 1}
    assert "moment" in found.choices["rests"].why
    found = select([replace(rests, key="a"), replace(rests, key="b")], need(30.0), effort=effort)
    assert found.chosen == {"a": 1, "b": 1}


@pytest.mark.parametrize("seed", range(3))
def test_noise_hardly_ever_switches_anybody(seed: int) -> None:
    rng = random.Random(seed)
    base = []
    for number in range(30):
        rate = rng.uniform(0.5, 2)
        usd = rate * rng.uniform(0.1, 0.3)
        base.append(offer(f"n{number:02d}", usd, rate, rollouts_per_s_std=0.05 * rate))

    def switches(*, is_lazy: bool) -> tuple[int, float]:
        noise = random.Random(seed)
        active: set[str] = set()
        number, usd = 0, 0.0
        for _ in range(40):
            offers = [
                replace(
                    o,
                    usd_per_hour=o.usd_per_hour * noise.gauss(1, 0.03),
                    rollouts_per_s=(o.rollouts_per_s or 0.0) * noise.gauss(1, 0.02),
                    num_active=int(is_lazy and o.key in active),
                )
                for o in base
            ]
            found: Selection = select(offers, replace(WANTED, z=1.8), effort=Effort.GREEDY)
            assert found.is_feasible
            number += len(active ^ set(found.chosen)) if active else 0
            active = set(found.chosen)
            usd += found.usd_per_hour
        return number, usd

    lazy, lazy_usd = switches(is_lazy=True)
    eager, eager_usd = switches(is_lazy=False)

    assert lazy * 10 <= eager
    assert lazy_usd <= 1.08 * eager_usd
