"""A good set in milliseconds: by price per rollout, then mended.

Where links or a limit bind, they get a price of their own, and the one that leads to the
cheapest set that keeps all limits is found by trying a ladder of prices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from echo2swarm.scheduling.selection.variables import TOLERANCE, Floats, SelectionVariables

_LADDER: Final = (0.0, 0.02, 0.07, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)
_SHORT_LADDER: Final = (0.0, 0.1, 0.5, 2.0, 10.0, 100.0)
_MAX_DROPS: Final = 50
_MAX_FRACTIONS: Final = 4
_ROUNDING: Final = 1e-6
_GROWTHS: Final = (1.0, 1.01, 1.025, 1.05, 1.1, 1.25, 1.6, 2.5, 6.0)
"""How much more than for an instant broadcast is asked for, at each of the B that are tried."""


def greedy(market: SelectionVariables) -> Floats | None:
    """Return a set that suffices and is allowed, or None if none was found."""
    best, best_cost = None, inf
    if market.is_hopeless():
        return None
    for broadcast_s in broadcast_times_s(market):
        found = _cheapest_at(market, broadcast_s, below=best_cost)
        if found is not None:
            best, best_cost = found, float(market.cost @ found)
    return best


def mend(market: SelectionVariables, x: Floats, broadcast_s: float) -> Floats | None:
    """Return a set like ``x``, which has a few fractions, that suffices and is allowed.

    None if none was found.
    """
    tools = _tools_at(market, broadcast_s)
    base = np.floor(np.minimum(x, tools.upper) + _ROUNDING)
    fractions = np.flatnonzero(x - base > _ROUNDING)[:_MAX_FRACTIONS]
    best, best_cost = None, inf
    for ups in product((0.0, 1.0), repeat=len(fractions)):
        start = base.copy()
        start[fractions] = np.minimum(base[fractions] + ups, tools.upper[fractions])
        deviation = sqrt(float(market.var @ start))
        found = _fill(tools, market.cost, deviation, start)
        if found is None or not market.is_solution(found):
            continue
        if (cost := float(market.cost @ found)) < best_cost:
            best, best_cost = found, cost
    return best


def broadcast_times_s(market: SelectionVariables) -> list[float]:
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

    market: SelectionVariables
    upper: Floats
    burden: Floats
    burden_limit: float
    target: float

    def is_met(self, supply: Floats | float, var: Floats | float) -> NDArray[np.bool_]:
        spread = self.market.need.z * np.sqrt(np.maximum(var, 0.0))
        return np.asarray(supply - spread >= self.target)

    def keeps_limits(self, x: Floats) -> bool:
        return bool(self.is_light(float(self.burden @ x))) and self.market.is_allowed(x)

    def is_light(self, burden: Floats | float) -> NDArray[np.bool_]:
        return np.asarray(burden <= self.burden_limit * (1 + 1e-9))


def _tools_at(market: SelectionVariables, broadcast_s: float) -> _Tools:
    links = market.links
    upper, burden, limit = market.upper, np.zeros(market.size), inf
    if links is not None:
        upper = np.where(links.is_in_time(broadcast_s), upper, 0.0)
        burden, limit = links.burden(broadcast_s), links.source_bytes_per_s
    needed = market.need.needed_rollouts_per_s(broadcast_s)
    return _Tools(market, upper, burden, limit, needed * (1 - TOLERANCE / 2))


def _cheapest_at(market: SelectionVariables, broadcast_s: float, *, below: float) -> Floats | None:
    """Return the best for one B, if it costs less than ``below``."""
    if least_cost(market, broadcast_s, broadcast_s) >= below:
        return None
    tools = _tools_at(market, broadcast_s)
    found = _fill(tools, market.cost, 0.0)
    if found is None:
        return None  # All together are not enough.
    # What is uncertain is worth less, by as much as it adds to the deviation of the set.
    deviation = sqrt(float(market.var @ found))
    best, best_cost = None, below
    for extra in _prices(tools, found):
        found = _fill(tools, market.cost + extra, deviation)
        if found is None or not tools.keeps_limits(found):
            continue
        cost = float(market.cost @ found)
        if cost < best_cost and market.is_solution(found):
            best, best_cost = found, cost
    return best


def _prices(tools: _Tools, unpriced: Floats) -> Iterator[Floats]:
    """Yield what to add to each cost, so that the limits that ``unpriced`` breaks are kept."""
    market = tools.market
    scale = float(np.sort(market.cost)[market.size // 2])
    burden_scale = float(np.sort(np.abs(tools.burden))[market.size // 2]) or 1.0
    is_burdened = not tools.is_light(float(tools.burden @ unpriced))
    most_nodes = market.limits.max_nodes
    is_crowded = most_nodes is not None and unpriced.sum() > most_nodes
    for node_price in _SHORT_LADDER if is_crowded else (0.0,):
        ladder = [
            scale * (node_price + tools.burden * (burden_price / burden_scale))
            for burden_price in (_LADDER if is_burdened else (0.0,))
        ]
        if len(ladder) == 1:
            yield from ladder
            continue
        highest = _fill(tools, market.cost + ladder[-1], 0.0)
        if highest is None or not tools.keeps_limits(highest):
            continue  # Then lower prices don't do, either.
        for extra in ladder:
            yield extra
            found = _fill(tools, market.cost + extra, 0.0)
            if found is not None and tools.keeps_limits(found):
                break  # A higher price would only make it dearer.


def least_cost(
    market: SelectionVariables, fast_s: float, slow_s: float, *, low_var: float = 0.0
) -> float:
    """Return a lower bound of what a set costs; infinite if there is none.

    As if fractions could be had, and each link counted by itself.

    Args:
        market: what there is.
        fast_s: its B is not less,
        slow_s: and not more.
        low_var: the variance of its supply is not less.
    """
    upper = market.upper
    if market.links is not None:
        upper = np.where(market.links.is_in_time(slow_s), upper, 0.0)
    needed = market.need.needed_rollouts_per_s(fast_s) * (1 - TOLERANCE)
    target = needed + market.need.z * sqrt(low_var)
    kinds = np.flatnonzero((upper > 0) & (market.mu > 0))
    kinds = kinds[np.argsort(market.cost[kinds] / market.mu[kinds], kind="stable")]
    supplies = np.cumsum(upper[kinds] * market.mu[kinds])
    if not len(kinds) or supplies[-1] < target:
        return inf
    last = int(np.searchsorted(supplies, target))
    costs = np.cumsum(upper[kinds] * market.cost[kinds])
    excess = float(supplies[last]) - target
    return float(costs[last]) - excess * float(market.cost[kinds[last]] / market.mu[kinds[last]])


def _fill(
    tools: _Tools, price: Floats, deviation: float, base: Floats | None = None
) -> Floats | None:
    """Return the cheapest per rollout, up to what is needed; None if all are not enough.

    Args:
        tools: at which B.
        price: of each, for the order.
        deviation: of the set, by which what is uncertain is discounted; 0 discounts nothing.
        base: those to begin with.
    """
    market = tools.market
    x = np.zeros(market.size) if base is None else base.copy()
    worth = market.mu
    if deviation > 0:
        worth = market.mu - market.need.z / 2 * market.var / deviation
    room = tools.upper - x
    kinds = np.flatnonzero((room > 0) & (worth > 0))
    order = kinds[np.argsort(price[kinds] / worth[kinds], kind="stable")]
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
    supply, var, burden = float(market.mu @ x), float(market.var @ x), float(tools.burden @ x)
    numbers = np.arange(1, int(tools.upper[kind] - x[kind]) + 1)
    enough = tools.is_met(supply + numbers * market.mu[kind], var + numbers * market.var[kind])
    number = int(numbers[int(np.argmax(enough))]) if enough.any() else len(numbers)
    single = tools.is_met(supply + market.mu, var + market.var) & (x < tools.upper)
    single &= tools.is_light(burden + tools.burden)
    others = np.flatnonzero(single)
    if len(others):
        other = int(others[np.argmin(price[others])])
        is_heavy = not tools.is_light(burden + number * tools.burden[kind])
        if is_heavy or price[other] < number * price[kind]:
            x[other] += 1
            return
    x[kind] += number


def _drop_superfluous(tools: _Tools, x: Floats, price: Floats) -> None:
    """Remove, dearest first, whatever isn't needed."""
    market = tools.market
    supply, var, burden = float(market.mu @ x), float(market.var @ x), float(tools.burden @ x)
    for _ in range(_MAX_DROPS):
        may_go = (x > 0) & (price > 0)
        may_go &= tools.is_met(supply - market.mu, var - market.var)
        may_go &= burden - tools.burden <= max(tools.burden_limit, burden)
        kinds = np.flatnonzero(may_go)
        if not len(kinds):
            return
        kind = int(kinds[np.argmax(price[kinds])])
        numbers = np.arange(int(x[kind]), 0, -1)
        left = tools.is_met(supply - numbers * market.mu[kind], var - numbers * market.var[kind])
        left &= burden - numbers * tools.burden[kind] <= max(tools.burden_limit, burden)
        dropped = int(numbers[int(np.argmax(left))]) if left.any() else 1
        x[kind] -= dropped
        supply -= dropped * market.mu[kind]
        var -= dropped * market.var[kind]
        burden -= dropped * tools.burden[kind]
