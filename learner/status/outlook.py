"""What the capacity model says of the run, and what its owner could do, for the status."""

from collections.abc import Sequence
from math import isfinite

from echo2swarm.plan.advice import Situation
from echo2swarm.scheduling.capacity import RunningEstimate, min_staleness
from echo2swarm.scheduling.selection import NodeOffer
from echo2swarm.system.rates import LearnerPhase
from learner.membership.activator import Activator
from learner.state.node_table import NodeTable
from learner.state.progress import WINDOW_S, LearnerProgress
from protocols.status import Outlook, Quantity


def outlook_of(progress: LearnerProgress, offers: Sequence[NodeOffer], now_s: float) -> Outlook:
    """Return what the capacity model says, from what was measured.

    Args:
        progress: the learner's pace.
        offers: the nodes as the selector sees them.
        now_s: the present.
    """
    active = [offer for offer in offers if offer.is_active]
    capacity = sum(offer.rollouts_per_s or 0.0 for offer in active)
    usd_per_hour = sum(offer.usd_per_hour for offer in active)
    workload, delays = progress.workload(now_s), progress.delays(now_s)
    found = progress.forecast(now_s, rollouts_per_s=capacity)
    tokens_per_s = progress.trained_tokens.per_s(now_s)
    return Outlook(
        train=_quantity(progress.train_s.estimate(now_s)),
        broadcast=_quantity(progress.broadcast_s.estimate(now_s)),
        rollout=_quantity(progress.rollout_s.estimate(now_s)),
        capacity_rollouts_per_s=capacity,
        required_rollouts_per_s=_finite(found.required_rollouts_per_s) if found else None,
        step_s=_finite(found.period_s) if found and capacity else None,
        busy_share=min(1.0, found.utilisation) if found and capacity else None,
        binds=found.binds.value if found and capacity else "",
        min_staleness=min_staleness(workload, delays) if workload else None,
        refused_share=progress.refused_share(now_s),
        dropped_share=progress.dropped_share(now_s),
        usd_per_hour=usd_per_hour,
        usd_per_million_tokens=(
            usd_per_hour / 3600 / tokens_per_s * 1e6 if tokens_per_s > 0 else None
        ),
    )


def situation_of(
    progress: LearnerProgress, nodes: NodeTable, activator: Activator, now_s: float
) -> Situation:
    """Return what advice to the owner goes by."""
    selection = activator.selection
    shares = progress.timeline.shares(now_s, WINDOW_S)
    return Situation(
        num_nodes=len(nodes.present),
        is_finished=progress.is_finished,
        need=activator.need(now_s),
        broadcast_s=progress.delays(now_s).broadcast_s,
        offers=activator.offers(now_s),
        limits=activator.limits,
        shortfall=selection.shortfall if selection else None,
        names={node.peer: node.advert.name for node in nodes.present},
        busy_share=min(1.0, shares.get(LearnerPhase.TRAINING, 0.0)),
    )


def _quantity(estimate: RunningEstimate | None) -> Quantity | None:
    if estimate is None:
        return None
    return Quantity(estimate.p50, estimate.p95, estimate.num_samples, estimate.is_prior)


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
