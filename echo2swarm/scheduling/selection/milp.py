"""Linear and integer programs, solved by HiGHS. SciPy is imported when the first one is.

HiGHS runs without the interpreter's lock, so whoever calls from a thread blocks nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from echo2swarm.system.errors import UsageError

Floats = NDArray[np.float64]
_FIRST_CORE: Final = 150
_CORE_GROWTH: Final = 3
_FITS: Final = 1e-7
_NO_PRICE: Final = 1e-12


@dataclass(slots=True)
class Constraints:
    """Conditions, all of the form ``coefficients . x <= limit``."""

    size: int
    coefficients: list[Floats] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def at_most(self, coefficients: Floats, limit: float) -> None:
        """Add ``coefficients . x <= limit``."""
        # The solver's tolerances are absolute, ours are relative.
        scale = abs(limit) or float(np.abs(coefficients).max(initial=0.0)) or 1.0
        self.coefficients.append(coefficients / scale)
        self.limits.append(limit / scale)

    def at_least(self, coefficients: Floats, limit: float) -> None:
        """Add ``coefficients . x >= limit``."""
        self.at_most(-coefficients, -limit)

    def matrix(self) -> Floats:
        """Return all coefficients, a row for each condition."""
        return np.vstack(self.coefficients) if self.coefficients else np.zeros((0, self.size))


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Minimise ``cost . x`` over integers from ``lower`` to ``upper``, under ``rows``."""

    cost: Floats
    lower: Floats
    upper: Floats
    rows: Constraints


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The optimum if fractions were allowed."""

    x: Floats
    cost: float
    lower_price: Floats
    """By how much the cost rises for each unit that a variable is above its lower bound."""
    upper_price: Floats
    """The same, below its upper bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """What came of an integer program."""

    x: Floats | None
    bound: float
    """No solution costs less; infinite if there is none."""
    is_proven: bool
    """Whether ``x`` is the best there is, or there is none."""


def solve_relaxed(program: Program, *, limit_s: float = inf) -> Relaxed | None:
    """Return the optimum over fractions; None if there is no solution.

    Raises:
        TimeoutError: it was not found within ``limit_s``.
    """
    if not program.rows.size:
        return None if any(limit < 0 for limit in program.rows.limits) else _nothing()
    result = _solvers().linprog(
        program.cost,
        A_ub=program.rows.matrix(),
        b_ub=program.rows.limits,
        bounds=np.column_stack([program.lower, program.upper]),
        method="highs",
        options={"time_limit": limit_s} if limit_s < inf else {},
    )
    if result.status == 1:
        raise TimeoutError(f"no solution within {limit_s:g} s")
    if result.status != 0:
        return None
    return Relaxed(
        x=result.x,
        cost=float(result.fun),
        lower_price=np.maximum(result.lower.marginals, 0.0),
        upper_price=np.maximum(-result.upper.marginals, 0.0),
    )


def solve_core(
    program: Program,
    relaxed: Relaxed,
    *,
    cutoff: float,
    rel_gap: float,
    left_s: Callable[[], float],
) -> Solved:
    """Return the optimum over integers, if it costs less than ``cutoff``.

    Only those variables are looked at that could be other than in ``relaxed`` in such a one.
    Are these too many, those are left out for the time being that would cost most; what is
    found then lowers the cutoff.
    """
    best: Floats | None = None
    bound = relaxed.cost
    size = _FIRST_CORE
    while True:
        lower, upper = _reduced(program, relaxed, cutoff)
        is_core = upper > lower
        is_whole = int(is_core.sum()) <= size
        if not is_whole:
            is_core &= _is_of_least(_regret(program, relaxed), is_core, size)
            settled = np.clip(np.round(relaxed.x), lower, upper)
            lower, upper = np.where(is_core, lower, settled), np.where(is_core, upper, settled)
        found = _solve_integer(
            replace(program, lower=lower, upper=upper),
            rel_gap=rel_gap,
            limit_s=max(0.05, left_s()),
        )
        if is_whole:
            bound = max(bound, min(found.bound, cutoff))
        if found.x is not None and (cost := float(program.cost @ found.x)) < cutoff:
            best, cutoff = found.x, cost
        if is_whole:
            return Solved(best, bound, is_proven=found.is_proven)
        if left_s() <= 0:
            return Solved(best, bound, is_proven=False)
        if cutoff <= relaxed.cost * (1 + rel_gap):
            return Solved(best, bound, is_proven=True)
        size *= _CORE_GROWTH


def _solve_integer(program: Program, *, rel_gap: float, limit_s: float) -> Solved:
    lower, upper = program.lower, program.upper
    is_free = upper > lower
    x = lower.copy()
    matrix, limits = program.rows.matrix(), np.array(program.rows.limits)
    rest = limits - matrix @ x
    fixed_cost = float(program.cost @ x)
    if not is_free.any():
        fits = bool(np.all(rest >= -_FITS))
        return Solved(x if fits else None, fixed_cost if fits else inf, is_proven=True)
    solvers = _solvers()
    result = solvers.milp(
        program.cost[is_free],
        integrality=np.ones(int(is_free.sum())),
        bounds=solvers.Bounds(np.zeros(int(is_free.sum())), (upper - lower)[is_free]),
        constraints=solvers.LinearConstraint(matrix[:, is_free], -inf, rest),
        options={"time_limit": limit_s, "mip_rel_gap": rel_gap},
    )
    if result.status == 2:
        return Solved(None, inf, is_proven=True)
    bound = result.mip_dual_bound
    lower_bound = fixed_cost + (-inf if bound is None else float(bound))
    if result.x is None:
        return Solved(None, lower_bound, is_proven=False)
    x[is_free] += np.round(result.x)
    return Solved(x, lower_bound, is_proven=result.status == 0)


def _regret(program: Program, relaxed: Relaxed) -> Floats:
    """Return what it costs to change each variable by one; 0 for those between their bounds."""
    at_lower = relaxed.x - program.lower < _FITS
    at_upper = program.upper - relaxed.x < _FITS
    regret = np.where(at_lower, relaxed.lower_price, 0.0)
    return np.where(at_upper & ~at_lower, relaxed.upper_price, regret)


def _is_of_least(values: Floats, among: NDArray[np.bool_], number: int) -> NDArray[np.bool_]:
    order = np.flatnonzero(among)
    order = order[np.argsort(values[order], kind="stable")][:number]
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order] = True
    return chosen


def _reduced(program: Program, relaxed: Relaxed, cutoff: float) -> tuple[Floats, Floats]:
    """Return the bounds outside which a solution costs ``cutoff`` or more."""
    if cutoff == inf:
        return program.lower, program.upper
    gap = max(0.0, cutoff - relaxed.cost)
    above, below = np.full(len(program.cost), inf), np.full(len(program.cost), inf)
    np.divide(gap, relaxed.lower_price, out=above, where=relaxed.lower_price > _NO_PRICE)
    np.divide(gap, relaxed.upper_price, out=below, where=relaxed.upper_price > _NO_PRICE)
    upper = np.minimum(program.upper, program.lower + np.floor(above + 1e-9))
    lower = np.maximum(program.lower, program.upper - np.floor(below + 1e-9))
    return lower, np.maximum(lower, upper)


def _nothing() -> Relaxed:
    empty = np.zeros(0)
    return Relaxed(x=empty, cost=0.0, lower_price=empty, upper_price=empty)


def _solvers() -> Any:  # noqa: ANN401 - SciPy has no types
    """Return the module of SciPy that brings HiGHS; to import it takes half a second.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from scipy import optimize  # noqa: PLC0415
    except ImportError:
        raise UsageError(
            "choosing among nodes needs SciPy, which is not installed: install it, or the extra "
            "[learner] of this software"
        ) from None
    return optimize
