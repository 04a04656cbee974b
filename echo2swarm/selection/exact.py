"""The cheapest set, proven: branch and bound over B and over the spread of supply.

Two things make the problem not linear: what is needed grows with B, which grows with who is
chosen; and the standard deviation of the supply is a root. So the ranges of B and of the
variance are divided into boxes. Within a box both are bounded by lines, which leaves an
integer program whose optimum costs at most as much as any set in the box. If that optimum
truly suffices, the box is done; if not, the box is divided where it fails.

Each integer program is cut down to a core: its linear relaxation has a price for each
variable, and one that alone would cost more than the best set found can't change.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise
from math import inf, isfinite, sqrt
from typing import Final

import numpy as np

from echo2swarm.selection.greedy import broadcast_times_s
from echo2swarm.selection.market import TOLERANCE, Floats, Market
from echo2swarm.selection.programs import Program, Rows, solve_core, solve_relaxed

MAX_BOXES: Final = 400
_GAP: Final = 1e-6
"""Relative; a set that is cheaper by less is not looked for."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the search came to."""

    x: Floats | None
    """The best set; None if there is none, or none was found in time."""
    bound: float
    """No set costs less (as the market is priced)."""
    is_optimal: bool
    """Whether the search was completed: ``x`` is the best, or there is none."""
    num_solved: int


@dataclass(frozen=True, slots=True)
class _Box:
    """A range of B and of the variance of supply."""

    fast_s: float
    slow_s: float
    low_var: float
    high_var: float


@dataclass(slots=True)
class _Search:
    market: Market
    left_s: Callable[[], float]
    best: Floats | None
    best_cost: float = inf
    num_solved: int = 0
    is_complete: bool = True
    bound: float = inf
    """The least of what was given up unproven."""
    queue: list[tuple[float, int, _Box]] = field(default_factory=list)
    serial: count = field(default_factory=count)  # type: ignore[type-arg]  # of int

    def consider(self, x: Floats) -> None:
        cost = float(self.market.cost @ x)
        if cost < self.best_cost and self.market.is_solution(x):
            self.best, self.best_cost = x, cost

    def push(self, bound: float, box: _Box) -> None:
        heapq.heappush(self.queue, (bound, next(self.serial), box))

    @property
    def cutoff(self) -> float:
        """What isn't cheaper than this is of no interest."""
        return self.best_cost * (1 - _GAP)

    def give_up(self, bound: float) -> None:
        self.is_complete = False
        self.bound = min(self.bound, bound)


def exact(
    market: Market, start: Floats | None, *, left_s: Callable[[], float], max_boxes: int = MAX_BOXES
) -> Proof:
    """Return the cheapest set that suffices and is allowed.

    Args:
        market: who there is, and what is needed.
        start: a set that does, if one is known.
        left_s: the time that may still be taken; asked again and again.
        max_boxes: to solve at most.
    """
    search = _Search(market, left_s, None)
    if start is not None:
        search.consider(start)
    for box in [] if market.is_hopeless() else _boxes(market):
        search.push(0.0, box)
    while search.queue:
        bound, _, box = heapq.heappop(search.queue)
        if bound >= search.cutoff:
            search.queue.clear()  # The rest costs at least as much.
            break
        if left_s() <= 0 or search.num_solved >= max_boxes:
            search.give_up(bound)
            break
        _solve(search, box, bound)
    search.bound = min(search.bound, search.best_cost)
    return Proof(search.best, search.bound, search.is_complete, search.num_solved)


def cheapest_bound(market: Market) -> float:
    """Return what any set that suffices costs at least; infinite if there is none."""
    bounds = []
    for box in _boxes(market):
        program = _program(market, box)
        relaxed = None if program is None else solve_relaxed(program)
        bounds.append(inf if relaxed is None else relaxed.cost)
    return min(bounds, default=inf)


def _boxes(market: Market) -> list[_Box]:
    most_var = float(market.var @ market.upper)
    times_s = broadcast_times_s(market)
    if market.links is None:
        return [_Box(t, t, 0.0, most_var) for t in times_s]
    return [_Box(fast, slow, 0.0, most_var) for fast, slow in pairwise([0.0, *times_s])]


def _solve(search: _Search, box: _Box, bound: float) -> None:
    market = search.market
    program = _program(market, box)
    search.num_solved += 1
    relaxed = None if program is None else solve_relaxed(program)
    if program is None or relaxed is None or relaxed.cost >= search.cutoff:
        return
    core = solve_core(program, relaxed, cutoff=search.cutoff, limit_s=max(0.05, search.left_s()))
    if core.x is None:
        if not core.is_proven:
            search.give_up(max(bound, core.bound))
        return
    x, lower_bound = core.x, max(bound, core.bound)
    search.consider(x)
    if not core.is_proven and core.bound < search.cutoff:
        search.give_up(lower_bound)
    if not market.suffices(x) and lower_bound < search.cutoff:
        parts = _divide(market, box, x)
        if not parts:
            search.give_up(lower_bound)  # It fails by a rounding error.
        for part in parts:
            search.push(lower_bound, part)


def _divide(market: Market, box: _Box, x: Floats) -> list[_Box]:
    """Return two halves of a box, neither of which has ``x`` among its solutions."""
    assured = market.assured(x)
    broadcast_s = market.broadcast_s(x)
    if broadcast_s > box.fast_s:
        # Where that supply would just do: before that it is too slow, after that too little.
        enough_s = _last_time_s(market, assured, box.fast_s, broadcast_s)
        if enough_s is not None:
            return [
                _Box(box.fast_s, enough_s, box.low_var, box.high_var),
                _Box(enough_s, box.slow_s, box.low_var, box.high_var),
            ]
    var = float(market.var @ x)
    if not box.low_var < var < box.high_var:
        return []
    return [
        _Box(box.fast_s, box.slow_s, box.low_var, var),
        _Box(box.fast_s, box.slow_s, var, box.high_var),
    ]


def _last_time_s(market: Market, assured: float, fast_s: float, slow_s: float) -> float | None:
    """Return a B, in the middle of those where ``assured`` is too little; None if it always is."""
    need = market.need
    if assured < need.needed_rollouts_per_s(fast_s) * (1 - TOLERANCE):
        return None
    low_s, high_s = fast_s, slow_s  # enough, too little
    for _ in range(60):
        middle_s = (low_s + high_s) / 2
        if assured >= need.needed_rollouts_per_s(middle_s) * (1 - TOLERANCE):
            low_s = middle_s
        else:
            high_s = middle_s
    middle_s = (high_s + slow_s) / 2
    return middle_s if fast_s < middle_s < slow_s else None


def _program(market: Market, box: _Box) -> Program | None:
    """Return the box's integer program; None if it plainly has no solution."""
    need, links = market.need, market.links
    needed = need.needed_rollouts_per_s(box.fast_s)
    if not isfinite(needed):
        return None
    upper = market.upper
    rows = Rows(market.size)
    if links is not None:
        upper = np.where(links.is_in_time(box.slow_s), upper, 0.0)
        burden = np.where(upper > 0, links.burden(box.slow_s), 0.0)
        rows.at_most(burden, links.source_bytes_per_s)
    if np.any(market.lower > upper):
        return None
    # The chord of the root between the ends of the range: below it, and equal at both.
    low, high = sqrt(box.low_var), sqrt(box.high_var)
    slope = 1 / (low + high) if high > 0 else 0.0
    rows.at_least(market.mu - need.z * slope * market.var, needed + need.z * low * high * slope)
    if low > 0:
        rows.at_least(market.var, box.low_var)
    if box.high_var < float(market.var @ upper):
        rows.at_most(market.var, box.high_var)
    if market.limits.max_nodes is not None:
        rows.at_most(np.ones(market.size), float(market.limits.max_nodes))
    if market.limits.max_usd_per_hour is not None:
        rows.at_most(market.running, market.limits.max_usd_per_hour)
    return Program(cost=market.cost, lower=market.lower, upper=upper, rows=rows)
