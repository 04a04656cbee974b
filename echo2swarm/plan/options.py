"""Ways to run a step, each with what it costs. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

from echo2swarm.plan.assumptions import Assumptions
from echo2swarm.plan.offers import (
    MBIT,
    broadcast_s_of,
    fills,
    offer_of,
    price_of,
    supply_of,
)
from echo2swarm.scheduling.capacity import (
    Delays,
    Forecast,
    LearnerLoad,
    forecast,
    min_staleness,
    paper_rollouts_per_s,
    prior,
)
from echo2swarm.scheduling.selection import Effort, Limits, Need, Selection, Shortfall, select

_EXACT_LIMIT_S: Final = 3.0
_MB: Final = 1e6
_SUPPLIES: Final = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, inf)
"""Of what the learner could consume; tried where no supply keeps it busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOption:
    """One way to run it."""

    max_staleness: int
    publish_every: int
    nodes: Mapping[str, int]
    """How many of each kind work."""
    is_enough: bool
    """Whether the learner never waits, with the sureness that was asked for."""
    supplied_rollouts_per_s: float
    needed_rollouts_per_s: float | None
    """Headroom included; None if no supply would do."""
    required_rollouts_per_s: float | None
    """Without headroom."""
    paper_rollouts_per_s: float | None
    """What the paper's rule asks for, for comparison."""
    min_staleness: int
    """With a smaller bound, the learner would wait at a supply that is only just enough."""
    broadcast_s: float
    forecast: Forecast
    nodes_usd_per_hour: float
    usd_per_hour: float
    """Of learner and nodes."""
    usd_per_step: float
    usd_per_million_tokens: float

    @property
    def num_nodes(self) -> int:
        """How many work."""
        return sum(self.nodes.values())


def workload_of(assumptions: Assumptions, *, bound: int, every: int) -> LearnerLoad:
    """Return what the learner does."""
    learner, weights = assumptions.learner, assumptions.weights
    return LearnerLoad(
        rollouts_per_step=learner.prompts_per_step * learner.group_size,
        train_s=learner.train_s,
        overhead_s=learner.overhead_s,
        pause_s=weights.load_s if weights.pause_s is None else weights.pause_s,
        max_staleness=bound,
        publish_every=every,
    )


class PlanInputs:
    """The assumptions, in the words of selector and capacity model."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._offers = [offer_of(table, assumptions) for table in assumptions.offer]
        limits = assumptions.limits
        self._limits = Limits(
            max_nodes=limits.max_nodes,
            max_usd_per_hour=limits.max_usd_per_hour,
            max_node_usd_per_hour=limits.max_node_usd_per_hour,
        )

    def option(self, bound: int, every: int, *, effort: Effort = Effort.GREEDY) -> PlanOption:
        """Return the cheapest set that is enough, or the best there is if none is."""
        need = self._need(bound, every)
        chosen = self._select(need, effort)
        if chosen.is_feasible and self._is_over_in_time(need, chosen.broadcast_s):
            return self._option(
                need,
                chosen.chosen,
                supplied=chosen.supplied_rollouts_per_s,
                broadcast_s=chosen.broadcast_s,
                nodes_usd_per_hour=chosen.usd_per_hour,
                is_enough=True,
            )
        return min(self._waiting(need), key=lambda option: option.usd_per_step)

    def shortfall(self, options: Sequence[PlanOption]) -> Shortfall | None:
        """Return what lacks with the largest bound."""
        if not options:
            return None
        widest = max(options, key=lambda o: o.max_staleness)
        # Of all that might be changed, publishing each step asks the least of anybody.
        every = self._assumptions.limits.publish_every or 1
        return self._select(self._need(widest.max_staleness, every), Effort.GREEDY).shortfall

    def _select(self, need: Need, effort: Effort) -> Selection:
        return select(
            self._offers, need, self._limits, effort=effort, left_s=lambda: _EXACT_LIMIT_S
        )

    def _need(self, bound: int, every: int) -> Need:
        assumptions = self._assumptions
        upload = assumptions.learner.upload_mbit
        return Need(
            workload=workload_of(assumptions, bound=bound, every=every),
            rollout_s=assumptions.rollouts.rollout_s,
            payload_bytes=assumptions.weights.payload_mb * _MB,
            source_bytes_per_s=None if upload is None else upload * MBIT,
            broadcast_s=assumptions.weights.broadcast_s,
            headroom=assumptions.rollouts.headroom,
            z=assumptions.rollouts.sureness,
        )

    def _is_over_in_time(self, need: Need, broadcast_s: float) -> bool:
        """Whether one broadcast is over before the next begins; else they share the links."""
        if not need.has_links:
            return True
        load_s = min((offer.load_s for offer in self._offers), default=0.0)
        window_s = need.workload.publish_every * need.workload.fed_period_s
        return broadcast_s - load_s <= window_s * (1 + 1e-9)

    def _waiting(self, need: Need) -> list[PlanOption]:
        """Return options with more and more nodes, the best value first; the learner waits."""
        wanted = need.workload.rollouts_per_step / need.workload.fed_period_s
        result = [
            self._option(
                need,
                nodes,
                supplied=supply_of(self._offers, nodes),
                broadcast_s=broadcast_s_of(need, self._offers, nodes),
                nodes_usd_per_hour=price_of(self._offers, nodes),
                is_enough=False,
            )
            for nodes in fills(self._offers, self._limits, [wanted * x for x in _SUPPLIES])
        ]
        return result or [
            self._option(
                need, {}, supplied=0.0, broadcast_s=0.0, nodes_usd_per_hour=0.0, is_enough=False
            )
        ]

    def _option(
        self,
        need: Need,
        nodes: Mapping[str, int],
        *,
        supplied: float,
        broadcast_s: float,
        nodes_usd_per_hour: float,
        is_enough: bool,
    ) -> PlanOption:
        learner, rollouts = self._assumptions.learner, self._assumptions.rollouts
        workload = need.workload
        spread = prior(rollouts.rollout_p50_s or rollouts.rollout_s, p95=rollouts.rollout_s)
        delays = Delays(
            broadcast_s=broadcast_s,
            rollout_s=rollouts.rollout_s,
            occupied_s=rollouts.rollout_s,
            rollout_times_s=spread.quantiles(),
        )
        found = forecast(workload, delays, rollouts_per_s=supplied)
        usd_per_hour = learner.usd_per_hour + nodes_usd_per_hour
        usd_per_step = usd_per_hour / 3600 * found.period_s if isfinite(found.period_s) else inf
        tokens = workload.rollouts_per_step * learner.tokens_per_rollout
        return PlanOption(
            max_staleness=workload.max_staleness,
            publish_every=workload.publish_every,
            nodes=dict(nodes),
            is_enough=is_enough,
            supplied_rollouts_per_s=supplied,
            needed_rollouts_per_s=_or_none(need.needed_rollouts_per_s(broadcast_s)),
            required_rollouts_per_s=_or_none(found.required_rollouts_per_s),
            paper_rollouts_per_s=_or_none(paper_rollouts_per_s(workload, delays)),
            min_staleness=min_staleness(workload, delays),
            broadcast_s=broadcast_s,
            forecast=found,
            nodes_usd_per_hour=nodes_usd_per_hour,
            usd_per_hour=usd_per_hour,
            usd_per_step=usd_per_step,
            usd_per_million_tokens=usd_per_step / tokens * 1e6,
        )


def _or_none(value: float) -> float | None:
    return value if isfinite(value) else None
