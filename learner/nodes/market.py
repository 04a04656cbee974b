"""What the selector is told: the nodes as offers, and what the learner needs. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from echo2swarm.broadcast.rates import LinkRates
from echo2swarm.selection import Limits, Need, Offer, effective
from echo2swarm.selection.hysteresis import DWELL_STARTUPS
from echo2swarm.selection.offers import BROADCAST_SLACK
from echo2swarm.selection.speed import Speed
from learner.config import SelectorTable
from learner.nodes.links import Links
from learner.nodes.node import UNABLE, Node
from learner.nodes.node_table import NodeTable
from learner.progress import Progress
from protocols.activation import Directive

MAX_PRIOR: Final = 2.0
"""No claim counts for more than this times the median of them."""
TRIAL_S: Final = 10.0
"""A node that stands by is given so long to time its engine, before it is tried."""


def limits_of(table: SelectorTable) -> Limits:
    """Return what the owner allows."""
    return Limits(
        max_nodes=table.max_nodes,
        max_usd_per_hour=table.max_usd_per_hour,
        max_node_usd_per_hour=table.max_node_usd_per_hour,
    )


def need_of(
    progress: Progress, nodes: NodeTable, links: Links, now_s: float, *, sigmas: float
) -> Need | None:
    """Return what keeps the learner busy, as measured; None before the first update."""
    workload, delays = progress.workload(now_s), progress.delays(now_s)
    if workload is None:
        return None
    return Need(
        workload=workload,
        rollout_s=delays.rollout_s,
        payload_bytes=float(nodes.update_bytes or 0),
        source_bytes_per_s=links.own_upload_bytes_per_s,
        broadcast_s=delays.broadcast_s,
        headroom=progress.rollouts.headroom,
        z=sigmas,
    )


def speeds_of(nodes: NodeTable, now_s: float) -> dict[str, Speed]:
    """Return what is known of how fast each node is; one of which nothing is known is left out.

    Those that are gone were measured, too: after a run, a plan goes by them.
    """
    priors = _priors(nodes.present, nodes.tokens_per_rollout, now_s)
    speeds = {
        node.peer: node.work.speed(now_s, prior_per_s=priors.get(node.peer)) for node in nodes
    }
    return {peer: speed for peer, speed in speeds.items() if speed is not None}


def offers_of(
    nodes: NodeTable, links: LinkRates, now_s: float, *, bound_s: float | None, usual_s: float
) -> list[Offer]:
    """Return the nodes that could work.

    Args:
        nodes: all of them.
        links: their measured rates.
        now_s: the present.
        bound_s: the least time in which the links bring a version to all of them; None if
            that isn't known.
        usual_s: the start-up of a node of which nothing is known.
    """
    speeds = speeds_of(nodes, now_s)
    able = [
        node for node in nodes.present if node.state not in UNABLE and not node.is_distrusted(now_s)
    ]
    startups_s = [node.startup_s for node in able if node.startup_s is not None]
    typical_s = median(startups_s) if startups_s else usual_s
    loads_s = _loads_s(able, bound_s)
    return [
        _offer(
            node,
            speeds.get(node.peer),
            links,
            now_s,
            load_s=load_s,
            startup_s=typical_s if node.startup_s is None else node.startup_s,
        )
        for node, load_s in zip(able, loads_s, strict=True)
    ]


def _offer(
    node: Node,
    speed: Speed | None,
    links: LinkRates,
    now_s: float,
    *,
    load_s: float,
    startup_s: float,
) -> Offer:
    mean, std = None, 0.0
    if speed is not None:
        mean, std = effective(
            speed.rollouts_per_s, speed.std, availability=node.presence.availability(now_s)
        )
    may_switch = now_s - node.switched_at_s >= DWELL_STARTUPS * startup_s
    is_active = node.directive is Directive.ACTIVE
    return Offer(
        key=node.peer,
        usd_per_hour=node.advert.usd_per_hour,
        rollouts_per_s=mean,
        rollouts_per_s_std=std,
        upload_bytes_per_s=links.upload_bytes_per_s(node.peer),
        download_bytes_per_s=links.download_bytes_per_s(node.peer),
        load_s=load_s,
        startup_s=startup_s,
        expected_stay_s=node.presence.stay_s(now_s),
        num_active=int(is_active),
        may_start=is_active or may_switch,
        may_stop=may_switch,
        is_measured=speed is not None and speed.is_sure,
        is_ready=node.ready_at_s is not None
        and (speed is not None or now_s >= node.ready_at_s + TRIAL_S),
    )


def _priors(
    nodes: Sequence[Node], tokens_per_rollout: float | None, now_s: float
) -> dict[str, float]:
    """Return what the nodes' own trials come to, within reason.

    A claim that nothing confirms yet counts for no more than the fastest node that was
    measured, so that nobody takes over a run by a claim alone.
    """
    claims = {n.peer: n.calibrated_tokens_per_s for n in nodes if n.calibrated_tokens_per_s}
    if not tokens_per_rollout or not claims:
        return {}
    measured = [speed.rollouts_per_s for n in nodes if (speed := n.work.speed(now_s)) is not None]
    rates = {peer: (claim or 0.0) / tokens_per_rollout for peer, claim in claims.items()}
    most = max(measured, default=0.0) or MAX_PRIOR * median(rates.values())
    return {peer: min(rate, most) for peer, rate in rates.items()}


def _loads_s(nodes: Sequence[Node], bound_s: float | None) -> list[float]:
    """Return what passes between a version's last byte and its use: what links don't explain."""
    if bound_s is None:
        return [0.0] * len(nodes)
    expected_s = BROADCAST_SLACK * bound_s
    known = {
        node.peer: max(0.0, median(node.broadcasts_s) - expected_s)
        for node in nodes
        if node.broadcasts_s
    }
    typical_s = median(known.values()) if known else 0.0
    return [known.get(node.peer, typical_s) for node in nodes]
