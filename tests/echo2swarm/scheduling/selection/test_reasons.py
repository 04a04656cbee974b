"""What contributors are told of why they work, or stand by."""

from echo2swarm.scheduling.selection import reasons
from echo2swarm.scheduling.selection.offers import Limits, NodeOffer
from echo2swarm.text.format import printable


def offer(usd_per_hour: float = 0.9) -> NodeOffer:
    return NodeOffer(key="a", rollouts_per_s=478.0, usd_per_hour=usd_per_hour)


def test_rates_are_numbers_that_people_read() -> None:
    said = reasons.not_needed(offer(), 1020.4, 145.2)

    assert "others supply 1020 rollouts/s for less, 145 are needed" in said


def test_what_is_too_long_is_cut_where_that_is_seen() -> None:
    limits = Limits(max_node_usd_per_hour=1e-300)
    said = reasons.too_dear(offer(1e300), limits)

    assert len(said) <= reasons.MAX_CHARS
    assert said == printable(said)
