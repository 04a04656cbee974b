"""Why an offer is active or stands by, in words for its contributor."""

from echo2swarm.scheduling.selection.offers import Limits, Need, NodeOffer
from echo2swarm.text.format import format_rate, format_seconds, printable

MAX_CHARS = 200
KEPT = "active: the set of nodes that works is enough, and no other is much cheaper"
STAYS = "active: it began only a moment ago, and is given time"
TRIED = "active: its speed is being measured"
ALL = "active: all rollouts are needed"
GETS_READY = "active: it can begin as soon as it holds the weights"
NOT_READY = "standby: it is getting ready, and the others supply enough"
NOT_TRIED = "standby: its speed is not known yet, and others are being measured first"
DELIVERS_NOTHING = "standby: nothing it delivered was accepted in time"
RESTS = "standby: it stopped only a moment ago"


def chosen(offer: NodeOffer, needed: float) -> str:
    """Return why ``offer`` works."""
    needed_rate = format_rate(needed)
    return _cut(f"active: {_value(offer)}; it is of the cheapest set that supplies {needed_rate}/s")


def too_dear(offer: NodeOffer, limits: Limits) -> str:
    """Return what is said of one above the price cap."""
    return _cut(
        f"standby: its price is {offer.usd_per_hour:g} USD/h, "
        f"max_node_usd_per_hour is {limits.max_node_usd_per_hour:g}"
    )


def too_slow_link(broadcast_s: float, need: Need) -> str:
    """Return what is said of one that would always be late."""
    return _cut(
        f"standby: it would have new weights after {format_seconds(broadcast_s)}; only up to "
        f"{format_seconds(max(0.0, need.max_broadcast_s))} are of use, for its link is too slow"
    )


def not_needed(offer: NodeOffer, supplied: float, needed: float) -> str:
    """Return what is said of one that others make superfluous."""
    return _cut(
        f"standby: others supply {format_rate(supplied)} rollouts/s for less, "
        f"{format_rate(needed)} are needed; {_value(offer)}"
    )


def over_limit(offer: NodeOffer, num_nodes: int, usd_per_hour: float, limits: Limits) -> str:
    """Return which limit keeps ``offer`` on standby; for when more supply would be welcome."""
    if limits.max_nodes is not None and num_nodes >= limits.max_nodes:
        return f"standby: max_nodes is {limits.max_nodes}, and others give more for their price"
    budget = limits.max_usd_per_hour
    if budget is not None and usd_per_hour + offer.usd_per_hour > budget:
        return _cut(
            f"standby: {usd_per_hour + offer.usd_per_hour:.2f} USD/h with this node, "
            f"max_usd_per_hour is {budget:g}"
        )
    return "standby: with its link, new weights would reach all too late"


def _value(offer: NodeOffer) -> str:
    if not offer.rollouts_per_s:
        return "its speed is not known"
    if not offer.usd_per_hour:
        return "it is free"
    per_1000 = offer.usd_per_hour / 3.6 / offer.rollouts_per_s
    return f"1000 of its rollouts cost {per_1000:.3g} USD"


def _cut(text: str) -> str:
    return printable(text, max_chars=MAX_CHARS)
