"""How long a broadcast takes to a set: the bound, plus what each needs to load."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.selection import Need, NodeOffer
from echo2swarm.scheduling.selection.broadcast_cost import LinkModel, alone_s
from echo2swarm.scheduling.selection.offers import Limits
from echo2swarm.scheduling.selection.variables import Floats, fill_links, market_of
from echo2swarm.weights.overlay.broadcast_bound import broadcast_bound_s
from tests.echo2swarm.scheduling.selection.markets import need, offer

PAYLOAD = 1e8
RATES = st.floats(1e5, 1e9)


def links_of(offers: list[NodeOffer], source: float) -> LinkModel:
    found = LinkModel.of(offers, wanted(source))
    assert found is not None
    return found


def wanted(source: float) -> Need:
    return need(payload_bytes=PAYLOAD, source_bytes_per_s=source)


def all_of(offers: list[NodeOffer]) -> Floats:
    return np.array([float(o.count) for o in offers])


@given(
    source=RATES,
    nodes=st.lists(st.tuples(RATES, RATES, st.integers(1, 5)), min_size=1, max_size=6),
    load_s=st.floats(0, 100),
)
def test_with_equal_loads_it_is_the_bound_and_a_margin(
    source: float, nodes: list[tuple[float, float, int]], load_s: float
) -> None:
    offers = [
        offer(str(i), 1.0, upload_bytes_per_s=up, download_bytes_per_s=down, load_s=load_s, count=n)
        for i, (up, down, n) in enumerate(nodes)
    ]
    bound_s = broadcast_bound_s(
        PAYLOAD,
        source_bytes_per_s=source,
        up_bytes_per_s=[up for up, _, n in nodes for _ in range(n)],
        down_bytes_per_s=[down for _, down, n in nodes for _ in range(n)],
    )

    found_s = links_of(offers, source).broadcast_s(all_of(offers))

    assert found_s == pytest.approx(load_s + 1.15 * bound_s, rel=1e-6)


@given(
    source=RATES,
    nodes=st.lists(st.tuples(RATES, RATES, st.floats(0, 50)), min_size=2, max_size=6),
)
def test_it_is_the_least_time_in_which_everybody_can_have_it(
    source: float, nodes: list[tuple[float, float, float]]
) -> None:
    offers = [
        offer(str(i), 1.0, upload_bytes_per_s=up, download_bytes_per_s=down, load_s=load_s)
        for i, (up, down, load_s) in enumerate(nodes)
    ]
    links = links_of(offers, source)

    def is_enough(broadcast_s: float) -> bool:
        rates = [1.15 * PAYLOAD / (broadcast_s - load_s) for _, _, load_s in nodes]
        return all(
            0 < r <= min(source, down) for r, (_, down, _) in zip(rates, nodes, strict=True)
        ) and sum(rates) <= source + sum(up for up, _, _ in nodes)

    found_s = links.broadcast_s(all_of(offers))

    assert is_enough(found_s * (1 + 1e-6))
    assert not is_enough(found_s * (1 - 1e-6))
    assert links.is_in_time(found_s).all()


def test_one_that_cannot_receive_never_has_it() -> None:
    assert alone_s(offer("a", 1.0, download_bytes_per_s=0.0), wanted(1e6)) == float("inf")


def test_unknown_links_are_taken_for_the_typical_one() -> None:
    known = [
        offer(str(i), 1.0, upload_bytes_per_s=up, download_bytes_per_s=10 * up)
        for i, up in enumerate((1e6, 2e6, 9e6))
    ]
    filled = fill_links([*known, offer("new", 1.0)])

    assert (filled[-1].upload_bytes_per_s, filled[-1].download_bytes_per_s) == (2e6, 2e7)
    assert filled[:3] == known


def test_links_of_which_nothing_is_known_do_not_count() -> None:
    market = market_of([offer("a", 1.0)], wanted(1e6), Limits())

    assert market.links is None
    assert market.broadcast_s(np.ones(1)) == 0.0
