"""From assumptions to a plan: who works, with which bound, and what a step costs. Pure.

For each bound S the cheapest period of publication kappa is found for which one broadcast is
over before the next begins; for both, the cheapest set of nodes that keeps the learner busy.
The plan is the cheapest of those, and of about equal ones the one with the smallest S.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from msgspec import structs

from echo2swarm.plan.assumptions import Assumptions, OfferTable
from echo2swarm.plan.options import PlanInputs, PlanOption, workload_of
from echo2swarm.scheduling.selection import Effort, Shortfall

EQUAL_COST: Final = 1.01
"""Of plans this near in cost, the one with the smaller S is taken."""
_MAX_PUBLISH_EVERY: Final = 8
_NEAR: Final = 1.04
"""Options that seem this near in cost to the cheapest are worked out exactly."""
_MAX_NEAR: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the plan is compared with."""

    name: str
    what: str
    num_machines: int
    utilisation: float
    period_s: float
    usd_per_hour: float
    usd_per_step: float
    saving: float | None
    """The share of its cost that the plan saves; negative if the plan is dearer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer."""

    best: PlanOption | None
    """None if nothing that is allowed keeps the learner busy."""
    by_staleness: tuple[PlanOption, ...]
    """The best for each bound considered: the trade-off."""
    baselines: tuple[Baseline, ...]
    shortfall: Shortfall | None
    """If there is no plan: what lacks with the largest bound, and what would do."""


def make_plan(assumptions: Assumptions) -> Plan:
    """Return the plan that follows from ``assumptions``."""
    question = PlanInputs(assumptions)
    options = [
        _best_with(question, bound, periods)
        for bound in _bounds(assumptions)
        if (periods := _periods(assumptions, bound))
    ]
    best = _best(options)
    return Plan(
        best=best,
        by_staleness=tuple(options),
        baselines=baselines(assumptions, best),
        shortfall=None if best else question.shortfall(options),
    )


def baselines(assumptions: Assumptions, best: PlanOption | None) -> tuple[Baseline, ...]:
    """Return what the centralised alternatives would do and cost."""
    central = assumptions.central
    if central is None:
        return ()
    cost = best.usd_per_step if best else None
    name = central.name
    machines = structs.replace(
        assumptions,
        offer=(
            OfferTable(
                name=name,
                count=central.count,
                rollouts_per_s=central.rollouts_per_s,
                usd_per_hour=central.usd_per_hour,
            ),
        ),
        central=None,
        weights=structs.replace(
            assumptions.weights, payload_mb=0.0, broadcast_s=central.broadcast_s
        ),
        rollouts=structs.replace(assumptions.rollouts, headroom=central.headroom),
        limits=structs.replace(
            assumptions.limits, max_usd_per_hour=None, max_nodes=None, max_node_usd_per_hour=None
        ),
    )
    plan = make_plan(machines)
    found = plan.best or min(plan.by_staleness, key=lambda o: o.usd_per_step, default=None)
    result = []
    if found is not None:
        result.append(
            Baseline(
                name="centralised",
                what=f"{found.num_nodes} x {name} beside the learner, S = {found.max_staleness}",
                num_machines=found.num_nodes,
                utilisation=found.forecast.utilisation,
                period_s=found.forecast.period_s,
                usd_per_hour=found.usd_per_hour,
                usd_per_step=found.usd_per_step,
                saving=_saving(cost, found.usd_per_step),
            )
        )
    if central.colocated_rollouts_per_s is not None:
        result.append(_colocated(assumptions, central.colocated_rollouts_per_s, cost))
    return tuple(result)


def _best_with(question: PlanInputs, bound: int, periods: Sequence[int]) -> PlanOption:
    """Return the cheapest option with one bound, whatever the period of publication."""
    found = [question.option(bound, every) for every in periods]
    best = min(found, key=lambda o: (not o.is_enough, o.usd_per_step))
    if not best.is_enough:
        return best
    enough = sorted((o for o in found if o.is_enough), key=lambda o: o.usd_per_step)
    # What is found fast is a few percent too dear, and not always by the same.
    near = [o for o in enough if o.usd_per_step <= _NEAR * best.usd_per_step][:_MAX_NEAR]
    exact = [question.option(bound, o.publish_every, effort=Effort.EXACT) for o in near]
    return min(exact, key=lambda o: (not o.is_enough, o.usd_per_step, o.publish_every))


def _bounds(assumptions: Assumptions) -> range:
    return range(assumptions.limits.min_staleness, assumptions.limits.max_staleness + 1)


def _periods(assumptions: Assumptions, bound: int) -> list[int]:
    fixed = assumptions.limits.publish_every
    if fixed is not None:
        return [fixed] if fixed <= bound + 1 else []
    return list(range(1, min(bound + 1, _MAX_PUBLISH_EVERY) + 1))


def _best(options: Sequence[PlanOption]) -> PlanOption | None:
    enough = [option for option in options if option.is_enough]
    if not enough:
        return None
    cheapest = min(option.usd_per_step for option in enough)
    near = [o for o in enough if o.usd_per_step <= EQUAL_COST * cheapest]
    return min(near, key=lambda o: o.max_staleness)


def _colocated(assumptions: Assumptions, rollouts_per_s: float, cost: float | None) -> Baseline:
    """Return what a learner does that makes its rollouts itself and trains afterwards."""
    workload = workload_of(assumptions, bound=0, every=1)
    period_s = workload.fed_period_s + workload.rollouts_per_step / rollouts_per_s
    usd_per_hour = assumptions.learner.usd_per_hour
    usd_per_step = usd_per_hour / 3600 * period_s
    return Baseline(
        name="co-located",
        what="the learner makes the rollouts itself, and trains afterwards",
        num_machines=0,
        utilisation=workload.train_s / period_s,
        period_s=period_s,
        usd_per_hour=usd_per_hour,
        usd_per_step=usd_per_step,
        saving=_saving(cost, usd_per_step),
    )


def _saving(cost: float | None, baseline: float) -> float | None:
    return 1 - cost / baseline if cost is not None and 0 < baseline < inf else None
