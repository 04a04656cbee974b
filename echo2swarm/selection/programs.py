"""Linear and integer programs, solved by HiGHS. SciPy is imported when the first one is.

HiGHS runs without the interpreter's lock, so whoever calls from a thread blocks nobody.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_REL_GAP: Final = 1e-7
_NO_PRICE: Final = 1e-12


@dataclass(slots=True)
class Rows:
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
    rows: Rows


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


def solve_relaxed(program: Program) -> Relaxed | None:
    """Return the optimum over fractions; None if there is no solution."""
    from scipy.optimize import linprog  # noqa: PLC0415 - takes half a second

    if not program.rows.size:
        return None if any(limit < 0 for limit in program.rows.limits) else _nothing()
    result = linprog(
        program.cost,
        A_ub=program.rows.matrix(),
        b_ub=program.rows.limits,
        bounds=np.column_stack([program.lower, program.upper]),
        method="highs",
    )
    if result.status != 0:
        return None
    return Relaxed(
        x=result.x,
        cost=float(result.fun),
        lower_price=np.maximum(result.lower.marginals, 0.0),
        upper_price=np.maximum(-result.upper.marginals, 0.0),
    )


def solve_core(program: Program, relaxed: Relaxed, *, cutoff: float, limit_s: float) -> Solved:
    """Return the optimum over integers, if it costs less than ``cutoff``.

    Only those variables are looked at that could be other than in ``relaxed`` in such a one.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415

    if not program.rows.size:
        return Solved(relaxed.x, 0.0, is_proven=True)
    lower, upper = _reduced(program, relaxed, cutoff)
    is_core = upper > lower
    x = lower.copy()
    matrix, limits = program.rows.matrix(), np.array(program.rows.limits)
    rest = limits - matrix @ x
    fixed_cost = float(program.cost @ x)
    if not is_core.any():
        fits = bool(np.all(rest >= -1e-7))
        return Solved(x if fits else None, fixed_cost if fits else inf, is_proven=True)
    result = milp(
        program.cost[is_core],
        integrality=np.ones(int(is_core.sum())),
        bounds=Bounds(np.zeros(int(is_core.sum())), (upper - lower)[is_core]),
        constraints=LinearConstraint(matrix[:, is_core], -inf, rest),
        options={"time_limit": limit_s, "mip_rel_gap": _REL_GAP},
    )
    if result.status == 2:
        return Solved(None, inf, is_proven=True)
    bound = result.mip_dual_bound
    lower_bound = max(relaxed.cost, fixed_cost + (-inf if bound is None else float(bound)))
    if result.x is None:
        return Solved(None, lower_bound, is_proven=False)
    x[is_core] += np.round(result.x)
    return Solved(x, lower_bound, is_proven=result.status == 0)


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
