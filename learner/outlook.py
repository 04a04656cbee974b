"""What the capacity model says of the run, and what its owner could do, for the status."""

from dataclasses import replace
from math import isfinite

from echo2swarm.capacity import Estimate, min_staleness
from echo2swarm.planning.advice import Situation
from echo2swarm.selection import Offer
from learner.nodes.links import Links
from learner.nodes.node_table import Node, NodeTable
from learner.progress import Progress
from protocols.activation import Directive, NodeState
from protocols.status import Outlook, Quantity


def outlook_of(progress: Progress, nodes: NodeTable, now_s: float) -> Outlook:
    """Return what the capacity model says, from what was measured."""
    active = [node for node in nodes.present if _is_active(node)]
    capacity = sum(node.work.per_s() or 0.0 for node in active)
    usd_per_hour = sum(node.advert.usd_per_hour for node in active)
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


def situation_of(progress: Progress, nodes: NodeTable, links: Links, now_s: float) -> Situation:
    """Return what advice to the owner goes by."""
    present = nodes.present
    found = progress.situation(now_s, num_nodes=len(present))
    need = found.need
    if need is not None:
        need = replace(
            need,
            payload_bytes=float(nodes.update_bytes or 0),
            source_bytes_per_s=links.own_upload_bytes_per_s,
        )
    return replace(
        found,
        need=need,
        offers=tuple(_offer(node) for node in present),
        names={node.peer: node.advert.name for node in present},
    )


def _is_active(node: Node) -> bool:
    return node.directive is Directive.ACTIVE and node.state is not NodeState.DRAINING


def _offer(node: Node) -> Offer:
    return Offer(
        key=node.peer,
        usd_per_hour=node.advert.usd_per_hour,
        rollouts_per_s=node.work.per_s(),
        num_active=int(_is_active(node)),
    )


def _quantity(estimate: Estimate | None) -> Quantity | None:
    if estimate is None:
        return None
    return Quantity(estimate.p50, estimate.p95, estimate.num_samples, estimate.is_prior)


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
