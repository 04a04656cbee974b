"""The market of a plan: offers in the words of the selector, and sets of them by value. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

from echo2swarm.plan.assumptions import Assumptions, OfferTable
from echo2swarm.scheduling.selection import Limits, Need, NodeOffer, effective
from echo2swarm.scheduling.selection.offers import BROADCAST_SLACK
from echo2swarm.weights.overlay.broadcast_bound import broadcast_bound_s

MBIT: Final = 1e6 / 8
"""Bytes."""


def offer_of(table: OfferTable, assumptions: Assumptions) -> NodeOffer:
    """Return an offer in the words of the selector."""
    rate, std = effective(table.rollouts_per_s, availability=table.availability)
    stay_h = table.expected_stay_h
    return NodeOffer(
        key=table.name,
        usd_per_hour=table.usd_per_hour,
        rollouts_per_s=rate,
        rollouts_per_s_std=std,
        upload_bytes_per_s=None if table.upload_mbit is None else table.upload_mbit * MBIT,
        download_bytes_per_s=None if table.download_mbit is None else table.download_mbit * MBIT,
        load_s=assumptions.weights.load_s if table.load_s is None else table.load_s,
        startup_s=table.startup_s,
        expected_stay_s=inf if stay_h is None else stay_h * 3600,
        egress_usd_per_gb=table.egress_usd_per_gb,
        count=table.count,
    )


def fills(
    offers: Sequence[NodeOffer], limits: Limits, supplies: Iterable[float]
) -> list[dict[str, int]]:
    """Return the sets of best value that supply as much, within the limits."""
    by_value = sorted(
        (o for o in offers if o.rollouts_per_s and _is_allowed(o, limits)),
        key=lambda o: (o.usd_per_hour / (o.rollouts_per_s or inf), o.key),
    )
    found: list[dict[str, int]] = []
    for supply in supplies:
        nodes = _fill(by_value, limits, supply)
        if nodes and nodes not in found:
            found.append(nodes)
    return found


def _fill(by_value: Sequence[NodeOffer], limits: Limits, supply: float) -> dict[str, int]:
    nodes: dict[str, int] = {}
    left, number = supply, limits.max_nodes or inf
    money = inf if limits.max_usd_per_hour is None else limits.max_usd_per_hour
    for offer in by_value:
        rate = offer.rollouts_per_s or inf
        most = min(offer.count, number, left / rate + 1 - 1e-9)
        if offer.usd_per_hour:
            most = min(most, money / offer.usd_per_hour * (1 + 1e-9))
        count = int(most)
        if count > 0:
            nodes[offer.key] = count
            left -= count * rate
            number -= count
            money -= count * offer.usd_per_hour
        if left <= 0:
            break
    return nodes


def _is_allowed(offer: NodeOffer, limits: Limits) -> bool:
    return (
        limits.max_node_usd_per_hour is None or offer.usd_per_hour <= limits.max_node_usd_per_hour
    )


def supply_of(offers: Sequence[NodeOffer], nodes: Mapping[str, int]) -> float:
    """Return what ``nodes`` make together."""
    return sum((o.rollouts_per_s or 0.0) * nodes.get(o.key, 0) for o in offers)


def price_of(offers: Sequence[NodeOffer], nodes: Mapping[str, int]) -> float:
    """Return what an hour of ``nodes`` costs."""
    return sum(o.usd_per_hour * nodes.get(o.key, 0) for o in offers)


def broadcast_s_of(need: Need, offers: Sequence[NodeOffer], nodes: Mapping[str, int]) -> float:
    """Return how long a broadcast to ``nodes`` takes."""
    source = need.source_bytes_per_s
    if not need.has_links or source is None or not nodes:
        return need.broadcast_s
    chosen = [(o, nodes[o.key]) for o in offers if nodes.get(o.key)]
    known = sorted(o.upload_bytes_per_s for o in offers if o.upload_bytes_per_s)
    middle = known[len(known) // 2] if known else 0.0
    up, down = [], []
    for offer, count in chosen:
        sends = offer.upload_bytes_per_s
        up += [middle if sends is None else sends] * count
        down += [offer.download_bytes_per_s or source] * count
    bound_s = broadcast_bound_s(
        need.payload_bytes, source_bytes_per_s=source, up_bytes_per_s=up, down_bytes_per_s=down
    )
    return BROADCAST_SLACK * bound_s + max(offer.load_s for offer, _ in chosen)
