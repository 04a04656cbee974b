"""When the nodes that are there are not enough: what would be."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf, isfinite
from typing import Final

from echo2swarm.scheduling.selection.greedy import greedy
from echo2swarm.scheduling.selection.offers import Addition, Limits, Need, NodeOffer, Shortfall
from echo2swarm.scheduling.selection.variables import Floats, SelectionVariables, market_of

_MAX_MORE_STALENESS: Final = 16
_MAX_ADDED: Final = 100_000
_MAX_GUESSES: Final = 5


def shortfall_of(
    market: SelectionVariables,
    chosen: Floats,
    offers: Sequence[NodeOffer],
    need: Need,
    limits: Limits,
) -> Shortfall:
    """Return what lacks, and what would help, each for itself.

    Args:
        market: the offers that the limits allow.
        chosen: those that are to work, of it.
        offers: all whose speed is known, dearer ones than ``limits`` allows included.
        need: what is needed.
        limits: what the owner allows.
    """
    needed = need.needed_rollouts_per_s(market.broadcast_s(chosen))
    lacking = max(0.0, needed - market.assured(chosen))
    return Shortfall(
        rollouts_per_s=lacking,
        max_usd_per_hour=_budget(offers, need, limits),
        max_node_usd_per_hour=_price(offers, need, limits),
        max_nodes=_number(offers, need, limits),
        max_staleness=_staleness(offers, need, limits),
        add=_addition(market, chosen, offers, need, limits),
    )


def allowed(offers: Sequence[NodeOffer], limits: Limits) -> list[NodeOffer]:
    """Return the offers that are not too dear."""
    most = limits.max_node_usd_per_hour
    return [o for o in offers if most is None or o.usd_per_hour <= most]


def _cheapest(
    offers: Sequence[NodeOffer], need: Need, limits: Limits
) -> tuple[SelectionVariables, Floats] | None:
    market = market_of(allowed(offers, limits), need, limits, discount=1.0, is_dwelling=False)
    x = greedy(market)
    return None if x is None else (market, x)


def _budget(offers: Sequence[NodeOffer], need: Need, limits: Limits) -> float | None:
    if limits.max_usd_per_hour is None:
        return None
    found = _cheapest(offers, need, replace(limits, max_usd_per_hour=None))
    if found is None:
        return None
    market, x = found
    return ceil(float(market.running @ x) * 100 - 1e-6) / 100


def _price(offers: Sequence[NodeOffer], need: Need, limits: Limits) -> float | None:
    if limits.max_node_usd_per_hour is None:
        return None
    found = _cheapest(offers, need, replace(limits, max_node_usd_per_hour=None))
    if found is None:
        return None
    market, x = found
    return max(kind[0].usd_per_hour for kind, n in zip(market.members, x, strict=True) if n > 0)


def _number(offers: Sequence[NodeOffer], need: Need, limits: Limits) -> int | None:
    if limits.max_nodes is None:
        return None
    found = _cheapest(offers, need, replace(limits, max_nodes=None))
    return None if found is None else round(float(found[1].sum()))


def _staleness(offers: Sequence[NodeOffer], need: Need, limits: Limits) -> int | None:
    now = need.workload.max_staleness
    for staleness in range(now + 1, now + 1 + _MAX_MORE_STALENESS):
        if _cheapest(offers, need.with_staleness(staleness), limits) is not None:
            return staleness
    return None


def _addition(
    market: SelectionVariables,
    chosen: Floats,
    offers: Sequence[NodeOffer],
    need: Need,
    limits: Limits,
) -> Addition | None:
    """Return how many more of the best value among the offers would do."""
    usable = [o for o in allowed(offers, limits) if o.rollouts_per_s]
    best = min(
        usable,
        key=lambda o: (o.usd_per_hour / (o.rollouts_per_s or inf), -(o.rollouts_per_s or 0), o.key),
        default=None,
    )
    if best is None or not best.rollouts_per_s:
        return None
    needed = need.needed_rollouts_per_s(market.broadcast_s(chosen))
    if not isfinite(needed):
        return None
    # The deviations of more nodes add up, so a few more than the mean asks for may be needed.
    number = max(1, ceil((needed - market.assured(chosen)) / best.rollouts_per_s - 1e-9))
    for _ in range(_MAX_GUESSES):
        if number > _MAX_ADDED:
            break
        joined = replace(best, key="", count=number, num_active=0, may_start=True)
        if _cheapest([*offers, joined], need, limits) is not None:
            return Addition(
                count=number,
                like=best.key,
                usd_per_hour=best.usd_per_hour,
                rollouts_per_s=best.rollouts_per_s,
            )
        number = ceil(number * 1.3 + 0.5)
    return None
