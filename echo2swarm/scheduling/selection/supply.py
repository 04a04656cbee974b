"""When what is needed isn't known, or can't be had: as much as the limits allow."""

from math import inf, isfinite
from typing import Final

import numpy as np

from echo2swarm.scheduling.capacity import Delays, forecast
from echo2swarm.scheduling.capacity.model import MAX_SECONDS
from echo2swarm.scheduling.selection.greedy import broadcast_times_s
from echo2swarm.scheduling.selection.variables import ACTIVE_DISCOUNT, Floats, SelectionVariables

_SAME: Final = 1e-6


def most_supply(market: SelectionVariables) -> Floats:
    """Return the set, among those allowed, with which a learner that has to wait is fastest.

    All of them, if limits permit and none has so slow a link that it would hold up the rest.
    What must stay (dwell) is not held to: a limit that was lowered counts at once.
    """
    best, best_period_s = np.zeros(market.size), inf
    for broadcast_s in [*broadcast_times_s(market), inf]:
        x = _most_at(market, broadcast_s)
        period_s = _period_s(market, x)
        is_more = market.mu @ x > market.mu @ best
        if period_s < best_period_s * (1 - _SAME) or (
            is_more and period_s <= best_period_s * (1 + _SAME)
        ):
            best, best_period_s = x, period_s
    return best


def _period_s(market: SelectionVariables, x: Floats) -> float:
    """Return the time that each step takes with ``x``."""
    broadcast_s = min(market.broadcast_s(x), MAX_SECONDS)
    rollout_s = market.need.rollout_s
    delays = Delays(broadcast_s=broadcast_s, rollout_s=rollout_s, occupied_s=rollout_s)
    supply = float(market.mu @ x)
    return forecast(market.need.workload, delays, rollouts_per_s=supply).period_s


def _most_at(market: SelectionVariables, broadcast_s: float) -> Floats:
    """Return the most supply of which all can have new weights within ``broadcast_s``."""
    upper = market.upper
    burden, limit = np.zeros(market.size), inf
    if market.links is not None and isfinite(broadcast_s):
        upper = np.where(market.links.is_in_time(broadcast_s), upper, 0.0)
        burden, limit = market.links.burden(broadcast_s), market.links.source_bytes_per_s
    mu = np.where(market.is_active, market.mu / ACTIVE_DISCOUNT, market.mu)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_price = np.where(market.running > 0, mu / market.running, inf)
    tried = [
        _relieve(market, _take(market, upper, worth), burden, limit)
        for worth in ((by_price, mu), (mu, by_price))
    ]
    return max(tried, key=lambda x: float(market.mu @ x))


def _take(market: SelectionVariables, upper: Floats, worth: tuple[Floats, Floats]) -> Floats:
    """Take the most worthy first, as many as the limits allow."""
    nodes = inf if market.limits.max_nodes is None else market.limits.max_nodes
    budget = inf if market.limits.max_usd_per_hour is None else market.limits.max_usd_per_hour
    x = np.zeros(market.size)
    for kind in np.lexsort((-worth[1], -worth[0])):
        number = min(upper[kind], nodes)
        if market.running[kind] > 0 and budget < inf:
            number = min(number, (budget + 1e-9) // market.running[kind])
        if number <= 0 or market.mu[kind] <= 0:
            continue
        x[kind] = number
        nodes -= number
        budget -= number * market.running[kind]
    return x


def _relieve(market: SelectionVariables, x: Floats, burden: Floats, limit: float) -> Floats:
    """Remove what burdens the broadcast most for what it supplies, until it is in time."""
    excess = float(burden @ x) - limit
    heavy = np.flatnonzero((x > 0) & (burden > 0))
    for kind in heavy[np.argsort(-burden[heavy] / np.maximum(market.mu[heavy], 1e-12))]:
        if excess <= limit * 1e-9:
            break
        number = min(x[kind], np.ceil(excess / burden[kind]))
        x[kind] -= number
        excess -= number * burden[kind]
    return x
