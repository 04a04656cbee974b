"""A good set in milliseconds: by price per rollout, then mended.

Where links or a limit bind, they get a price of their own, and the one that leads to the
cheapest set that keeps all limits is found by trying a ladder of prices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from echo2swarm.selection.market import TOLERANCE, Floats, Market

_LADDER: Final = (0.0, 0.02, 0.07, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)
_SHORT_LADDER: Final = (0.0, 0.1, 0.5, 2.0, 10.0, 100.0)
_MAX_DROPS: Final = 400
_GROWTHS: Final = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 6.0)
"""How much more than for an instant broadcast is asked for, at each of the B that are tried."""


def greedy(market: Market) -> Floats | None:
    """Return a set that suffices and is allowed, or None if none was found."""
    best, best_cost = None, inf
    if market.is_hopeless():
        return None
    for broadcast_s in broadcast_times_s(market):
        found = _cheapest_at(market, broadcast_s, below=best_cost)
        if found is not None and (cost := float(market.cost @ found)) < best_cost:
            best, best_cost = found, cost
    return best


def broadcast_times_s(market: Market) -> list[float]:
    """Return the values of B to try, or to divide all possible ones by; the last is below B_max."""
    need = market.need
    longest_s = need.max_broadcast_s
    if longest_s <= 0:
        return []
    if market.links is None:
        return [need.broadcast_s] if need.broadcast_s < longest_s else []
    period_s = need.workload.fed_period_s
    times_s = {longest_s - min(period_s, longest_s) / growth for growth in _GROWTHS}
    return sorted(t for t in times_s | {longest_s * (1 - 1e-6)} if t > 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Tools:
    """One B: who can take part, at which burden, and what has to be supplied."""

    market: Market
    upper: Floats
    burden: Floats
    burden_limit: float
    needed: float

    @property
    def target(self) -> float:
        return self.needed * (1 - TOLERANCE * 0.5)

    def is_met(self, supply: Floats | float, var: Floats | float) -> NDArray[np.bool_]:
        return np.asarray(
            supply - self.market.need.z * np.sqrt(np.maximum(var, 0.0)) >= self.target
        )

    def keeps_limits(self, x: Floats) -> bool:
        burden = float(self.burden @ x)
        return burden <= self.burden_limit * (1 + 1e-9) and self.market.is_allowed(x)


def _cheapest_at(market: Market, broadcast_s: float, *, below: float) -> Floats | None:
    links = market.links
    upper, burden, limit = market.upper, np.zeros(market.size), inf
    if links is not None:
        upper = np.where(links.is_in_time(broadcast_s), upper, 0.0)
        burden, limit = links.burden(broadcast_s), links.source_bytes_per_s
    if np.any(market.lower > upper):
        return None
    needed = market.need.needed_rollouts_per_s(broadcast_s)
    tools = _Tools(market, upper, burden, limit, needed)
    found = _fill(tools, market.cost)
    if found is None:
        return None  # All together are not enough.
    if tools.keeps_limits(found):
        # Nothing binds, so that no price makes it cheaper.
        return found if market.cost @ found < below and market.is_solution(found) else None
    best, best_cost = None, below
    for ladder in _ladders(tools, found):
        if not _is_kept_by(tools, ladder[-1]):
            continue  # Then lower prices don't do, either.
        for extra in ladder:
            found = _fill(tools, market.cost + extra)
            if found is None or not tools.keeps_limits(found):
                continue
            cost = float(market.cost @ found)
            if cost < best_cost and market.is_solution(found):
                best, best_cost = found, cost
            break  # A higher price would only make it dearer.
    return best


def _is_kept_by(tools: _Tools, extra: Floats) -> bool:
    found = _fill(tools, tools.market.cost + extra)
    return found is not None and tools.keeps_limits(found)


def _ladders(tools: _Tools, unpriced: Floats) -> Iterator[list[Floats]]:
    """Yield rising additions to each cost, so that the limits that ``unpriced`` breaks are kept."""
    market = tools.market
    scale = float(np.median(market.cost))
    burden_scale = float(np.median(np.abs(tools.burden))) or 1.0
    is_burdened = tools.burden @ unpriced > tools.burden_limit
    most_nodes = market.limits.max_nodes
    is_crowded = most_nodes is not None and unpriced.sum() > most_nodes
    for node_price in _SHORT_LADDER if is_crowded else (0.0,):
        yield [
            scale * (node_price + tools.burden * (burden_price / burden_scale))
            for burden_price in (_LADDER if is_burdened else (0.0,))
        ]


def _fill(tools: _Tools, price: Floats) -> Floats | None:
    """Return the cheapest per rollout, up to what is needed; None if all are not enough."""
    market = tools.market
    x = market.lower.copy()
    room = tools.upper - x
    open_ = np.flatnonzero((room > 0) & (market.mu > 0))
    order = open_[np.argsort(price[open_] / market.mu[open_], kind="stable")]
    supply, var = float(market.mu @ x), float(market.var @ x)
    if not tools.is_met(supply, var):
        supplies = supply + np.cumsum(room[order] * market.mu[order])
        vars_ = var + np.cumsum(room[order] * market.var[order])
        enough = np.flatnonzero(tools.is_met(supplies, vars_))
        if not len(enough):
            return None
        last = int(enough[0])
        x[order[:last]] = tools.upper[order[:last]]
        _complete(tools, x, int(order[last]), price)
    _drop_superfluous(tools, x, price)
    return x


def _complete(tools: _Tools, x: Floats, kind: int, price: Floats) -> None:
    """Add as few of ``kind`` as suffice, or one of another kind if that is cheaper."""
    market = tools.market
    supply, var = float(market.mu @ x), float(market.var @ x)
    numbers = np.arange(1, int(tools.upper[kind] - x[kind]) + 1)
    enough = tools.is_met(supply + numbers * market.mu[kind], var + numbers * market.var[kind])
    number = int(numbers[int(np.argmax(enough))]) if enough.any() else len(numbers)
    single = tools.is_met(supply + market.mu, var + market.var) & (x < tools.upper)
    others = np.flatnonzero(single)
    if len(others):
        other = int(others[np.argmin(price[others])])
        if price[other] < number * price[kind]:
            x[other] += 1
            return
    x[kind] += number


def _drop_superfluous(tools: _Tools, x: Floats, price: Floats) -> None:
    """Remove, dearest first, whatever isn't needed."""
    market = tools.market
    supply, var = float(market.mu @ x), float(market.var @ x)
    burden = float(tools.burden @ x)
    taken = np.flatnonzero((x > market.lower) & (price > 0))
    for kind in taken[np.argsort(-price[taken], kind="stable")][:_MAX_DROPS]:
        number = int(x[kind] - market.lower[kind])
        numbers = np.arange(number, 0, -1)
        left = tools.is_met(supply - numbers * market.mu[kind], var - numbers * market.var[kind])
        eased = burden - numbers * tools.burden[kind]
        left &= eased <= max(tools.burden_limit * (1 + 1e-9), burden)
        if left.any():
            dropped = int(numbers[int(np.argmax(left))])
            x[kind] -= dropped
            supply -= dropped * market.mu[kind]
            var -= dropped * market.var[kind]
            burden -= dropped * tools.burden[kind]
