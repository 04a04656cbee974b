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
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, sqrt
from typing import Final

import numpy as np

from echo2swarm.scheduling.selection.greedy import broadcast_times_s, least_cost, mend
from echo2swarm.scheduling.selection.milp import (
    Constraints,
    Program,
    Relaxed,
    Solved,
    solve_core,
    solve_relaxed,
)
from echo2swarm.scheduling.selection.variables import TOLERANCE, Floats, SelectionVariables

MAX_BOXES: Final = 400
SMALL: Final = 300
_FEW_FACTORS: Final = (0.8, 1.25)
_MANY_FACTORS: Final = (0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.18, 1.4, 2.0)
"""Of the variance of a good set: the narrower the boxes near it, the better are their bounds."""
_GAP: Final = 1e-6
"""Relative; a set that is cheaper by less is not looked for."""
_LARGE_GAP: Final = 2e-4
"""The same where there are more than ``SMALL`` variables."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A box in the queue; its program and relaxation once they were needed."""

    box: _Box
    program: Program | None = None
    relaxed: Relaxed | None = None


@dataclass(slots=True)
class _Search:
    market: SelectionVariables
    left_s: Callable[[], float]
    rel_gap: float
    best: Floats | None = None
    best_cost: float = inf
    num_solved: int = 0
    is_complete: bool = True
    bound: float = inf
    """The least of what was given up unproven."""
    queue: list[tuple[float, int, _Node]] = field(default_factory=list)
    num_pushed: int = 0

    @property
    def cutoff(self) -> float:
        """What isn't cheaper than this is of no interest."""
        return self.best_cost * (1 - self.rel_gap)

    def consider(self, x: Floats | None) -> None:
        if x is None:
            return
        cost = float(self.market.cost @ x)
        if cost < self.best_cost and self.market.is_solution(x):
            self.best, self.best_cost = x, cost

    def push(self, box: _Box, *, least: float = 0.0) -> None:
        """Enter a box, if it may have something cheaper; nothing in it costs under ``least``."""
        simple = least_cost(self.market, box.fast_s, box.slow_s, low_var=box.low_var)
        bound = max(least, simple)
        if bound < self.cutoff:
            self._enter(bound, _Node(box))

    def relax(self, node: _Node, least: float) -> None:
        """Enter a box again, with a better bound."""
        program = _program(self.market, node.box)
        if program is None:
            return
        try:
            relaxed = solve_relaxed(program, limit_s=max(0.05, self.left_s()))
        except TimeoutError:
            self.give_up(least)
            return
        if relaxed is None:
            return
        self.consider(mend(self.market, relaxed.x, node.box.slow_s))
        if (bound := max(least, relaxed.cost)) < self.cutoff:
            self._enter(bound, replace(node, program=program, relaxed=relaxed))

    def _enter(self, bound: float, node: _Node) -> None:
        heapq.heappush(self.queue, (bound, self.num_pushed, node))
        self.num_pushed += 1

    def divide(self, box: _Box, x: Floats, bound: float) -> bool:
        """Divide a box whose relaxation is far from what is needed; returns whether it is."""
        needed = self.market.need.needed_rollouts_per_s(self.market.broadcast_s(x))
        if self.market.assured(x) >= needed * (1 - self.rel_gap):
            return False
        parts = _divide(self.market, box, x)
        for part in parts:
            self.push(part, least=bound)
        return bool(parts)

    def give_up(self, bound: float) -> None:
        self.is_complete = False
        self.bound = min(self.bound, bound)


def exact(
    market: SelectionVariables,
    start: Floats | None,
    *,
    left_s: Callable[[], float],
    max_boxes: int = MAX_BOXES,
) -> Proof:
    """Return the cheapest set that suffices and is allowed.

    Args:
        market: who there is, and what is needed.
        start: a set that does, if one is known.
        left_s: the time that may still be taken; asked again and again.
        max_boxes: to solve at most.
    """
    search = _Search(market, left_s, _GAP if market.size <= SMALL else _LARGE_GAP)
    search.consider(start)
    boxes = _boxes(market, search.best)
    if search.best is not None and market.size > SMALL:
        # A better set soon is worth more than the best order.
        home = [box for box in boxes if _is_in(market, search.best, box)]
        for box in home[:1]:
            search.relax(_Node(box), 0.0)
            boxes.remove(box)
    for box in boxes:
        search.push(box)
    while search.queue:
        bound, _, node = heapq.heappop(search.queue)
        if bound >= search.cutoff:
            search.bound = min(search.bound, bound)
            break  # The rest costs at least as much.
        if left_s() <= 0 or search.num_solved >= max_boxes:
            search.give_up(bound)
            break
        if node.program is None or node.relaxed is None:
            search.relax(node, bound)
            continue
        if market.size > SMALL and search.divide(node.box, node.relaxed.x, bound):
            continue
        search.num_solved += 1
        solved = solve_core(
            node.program, node.relaxed, cutoff=search.cutoff, rel_gap=search.rel_gap, left_s=left_s
        )
        _conclude(search, node.box, solved, max(bound, solved.bound))
    search.bound = min(search.bound, search.best_cost)
    return Proof(search.best, search.bound, search.is_complete, search.num_solved)


def _conclude(search: _Search, box: _Box, solved: Solved, bound: float) -> None:
    search.consider(solved.x)
    if not solved.is_proven:
        search.give_up(bound)
    elif solved.x is not None and not search.market.suffices(solved.x) and bound < search.cutoff:
        parts = _divide(search.market, box, solved.x)
        if not parts:
            search.give_up(bound)  # It fails by a rounding error.
        for part in parts:
            search.push(part, least=bound)


def cheapest_bound(market: SelectionVariables) -> float:
    """Return what any set that suffices costs at least; infinite if there is none."""
    bounds = []
    for box in _boxes(market):
        program = _program(market, box)
        relaxed = None if program is None else solve_relaxed(program)
        bounds.append(inf if relaxed is None else relaxed.cost)
    return min(bounds, default=inf)


def _boxes(market: SelectionVariables, start: Floats | None = None) -> list[_Box]:
    """Return all B and variances, in boxes; those near ``start`` in narrow ones."""
    if market.is_hopeless():
        return []
    most_var = float(market.var @ market.upper)
    var = 0.0 if start is None else float(market.var @ start)
    factors = _FEW_FACTORS if market.size <= SMALL else _MANY_FACTORS
    edges = [0.0, *(var * f for f in factors if 0 < var * f < most_var), most_var]
    ranges = list(pairwise(edges)) if market.need.z > 0 and most_var > 0 else [(0.0, most_var)]
    times_s = broadcast_times_s(market)
    spans = [(t, t) for t in times_s] if market.links is None else pairwise([0.0, *times_s])
    return [_Box(*span, *var_range) for span in spans for var_range in ranges]


def _is_in(market: SelectionVariables, x: Floats, box: _Box) -> bool:
    """Whether a box has ``x`` among its sets."""
    return (
        box.fast_s <= market.broadcast_s(x) <= box.slow_s
        and box.low_var <= float(market.var @ x) <= box.high_var
    )


def _divide(market: SelectionVariables, box: _Box, x: Floats) -> list[_Box]:
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


def _last_time_s(
    market: SelectionVariables, assured: float, fast_s: float, slow_s: float
) -> float | None:
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


def _program(market: SelectionVariables, box: _Box) -> Program | None:
    """Return the box's integer program; None if it plainly has no solution."""
    need, links = market.need, market.links
    needed = need.needed_rollouts_per_s(box.fast_s)
    if not isfinite(needed):
        return None
    upper = market.upper
    rows = Constraints(market.size)
    if links is not None:
        upper = np.where(links.is_in_time(box.slow_s), upper, 0.0)
        burden = np.where(upper > 0, links.burden(box.slow_s), 0.0)
        rows.at_most(burden, links.source_bytes_per_s)
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
    return Program(cost=market.cost, lower=np.zeros(market.size), upper=upper, rows=rows)
