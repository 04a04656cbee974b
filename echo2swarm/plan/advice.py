"""What the run owner could do, in one line. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite
from typing import Final

from echo2swarm.scheduling.capacity import (
    BindingLimit,
    Delays,
    Forecast,
    LearnerLoad,
    forecast,
    max_publish_every,
    min_staleness,
)
from echo2swarm.scheduling.selection import Effort, Limits, Need, NodeOffer, Shortfall, select
from echo2swarm.text.format import (
    format_mbit,
    format_percent,
    format_rate,
    format_seconds,
    printable,
)

FREE_BELOW: Final = 1.25
"""Up to this times the need nobody is said to be superfluous: the selector keeps as much."""
MAX_STALENESS: Final = 16
"""Nobody is advised to allow more: rewards suffer."""
MAX_ADDED: Final = 10_000
"""Nobody is advised to add more nodes."""
_BUSY: Final = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known of a run."""

    num_nodes: int
    """Present, whether they work or stand by."""
    is_finished: bool = False
    need: Need | None = None
    """None before the first update."""
    broadcast_s: float = 0.0
    """B, measured."""
    offers: Sequence[NodeOffer] = ()
    """Those present."""
    limits: Limits = field(default_factory=Limits)
    shortfall: Shortfall | None = None
    """What the selector lacks."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the offers are called, by key."""
    busy_share: float | None = None
    """Measured."""

    @property
    def supply(self) -> float:
        """What the active nodes make when they work all the time."""
        return sum((offer.rollouts_per_s or 0.0) * offer.num_active for offer in self.offers)

    @property
    def delays(self) -> Delays:
        """B and g."""
        rollout_s = self.need.rollout_s if self.need else 0.0
        return Delays(broadcast_s=self.broadcast_s, rollout_s=rollout_s, occupied_s=rollout_s)


def advise(situation: Situation) -> str:
    """Return what could be done, and why; or that nothing need be done."""
    unknown, need = _unknown(situation), situation.need
    if unknown or need is None:
        return unknown
    found = forecast(need.workload, situation.delays, rollouts_per_s=situation.supply)
    match found.binds:
        case BindingLimit.LATENCY:
            return _late(situation, need, found)
        case BindingLimit.SUPPLY:
            return _short(situation, need, found)
        case BindingLimit.LEARNER:
            return _enough(situation, need, found)


def _unknown(situation: Situation) -> str:
    """Return why there is nothing to advise on yet, or any more; empty if there is."""
    if situation.is_finished:
        return "the run is finished"
    if not situation.num_nodes:
        return "no node is connected: hand out the ticket"
    if situation.need is None:
        return "measuring: the first update is not done yet"
    if not situation.supply:
        return "measuring: no node that is active has delivered yet"
    return ""


def _late(situation: Situation, need: Need, found: Forecast) -> str:
    delays = situation.delays
    why = (
        f"new weights take {format_seconds(delays.broadcast_s)} and a rollout "
        f"{format_seconds(delays.rollout_s)}, more than max_staleness "
        f"{need.workload.max_staleness} covers"
    )
    wishes = [
        *_staleness(need.workload, delays, situation.supply),
        *_publish_every(need.workload, delays),
        *_upload(need, delays),
    ]
    return _joined(_busy(situation, found), why, wishes)


def _short(situation: Situation, need: Need, found: Forecast) -> str:
    needed = need.needed_rollouts_per_s(situation.broadcast_s)
    if not isfinite(needed):
        # More bound is wanted too, but more supply helps first.
        needed = (1 + need.headroom) * need.workload.rollouts_per_step / need.workload.fed_period_s
    lacking = max(0.0, needed - situation.supply)
    wishes = [*_limits(situation), *_nodes(situation, lacking)]
    return _joined(_busy(situation, found), f"short {format_rate(lacking)} rollouts/s", wishes)


def _enough(situation: Situation, need: Need, found: Forecast) -> str:
    supply = situation.supply
    needed = need.needed_rollouts_per_s(situation.broadcast_s)
    if isfinite(needed) and supply > FREE_BELOW * needed:
        released = _superfluous(situation, need)
        if released:
            return _joined(_busy(situation, found), released, ())
    if situation.busy_share is not None and situation.busy_share < _BUSY - 0.1:
        there = f"{format_rate(supply)} rollouts/s could be made, {format_rate(needed)} are needed"
        return _joined(_busy(situation, found), f"{there}: it should be busier soon", ())
    return "the learner is busy"


def _superfluous(situation: Situation, need: Need) -> str:
    """Return which active nodes the others could do without."""
    active = [
        replace(offer, count=offer.num_active, num_active=0, may_start=True, may_stop=True)
        for offer in situation.offers
        if offer.num_active
    ]
    chosen = select(active, need, situation.limits, effort=Effort.GREEDY)
    if not chosen.is_feasible:
        return ""
    spare = {offer: offer.count - chosen.choices[offer.key].count for offer in active}
    number = sum(spare.values())
    saved = sum(offer.usd_per_hour * count for offer, count in spare.items())
    if not number:
        return ""
    saving = f", saving ${saved:.2f}/h" if saved >= 0.005 else ""
    return f"{_count(number)} could be released{saving}"


def _staleness(workload: LearnerLoad, delays: Delays, supply: float) -> list[str]:
    """Return the bound that covers the delays with the supply there is."""
    smallest = min_staleness(workload, delays, rollouts_per_s=supply)
    if workload.max_staleness < smallest <= MAX_STALENESS:
        return [f"raise max_staleness to {smallest}"]
    return []


def _publish_every(workload: LearnerLoad, delays: Delays) -> list[str]:
    largest = max_publish_every(workload, delays)
    if largest is not None and largest < workload.publish_every:
        return [f"publish every {largest} steps" if largest > 1 else "publish every step"]
    return []


def _upload(need: Need, delays: Delays) -> list[str]:
    """Return what upload would do, if it is the learner's that makes broadcasts slow."""
    if not need.has_links or not need.source_bytes_per_s:
        return []
    sent_s = need.payload_bytes / need.source_bytes_per_s
    if sent_s < delays.broadcast_s / 2:
        return []
    per_step_s = need.workload.fed_period_s
    may_take_s = need.max_broadcast_s - per_step_s - (delays.broadcast_s - sent_s)
    now = f"{format_seconds(sent_s)} of it at {format_mbit(need.source_bytes_per_s)} Mbit/s"
    if may_take_s <= 0:
        return [f"upload faster: {now}"]
    wanted = format_mbit(need.payload_bytes / may_take_s)
    return [f"upload at {wanted} Mbit/s (the weights alone take {now})"]


def _limits(situation: Situation) -> list[str]:
    """Return which limit of the owner's would have to give."""
    lacks = situation.shortfall
    if lacks is None:
        return []
    wishes = []
    if lacks.max_usd_per_hour is not None:
        wishes.append(f"allow ${lacks.max_usd_per_hour:.2f}/h")
    if lacks.max_node_usd_per_hour is not None:
        wishes.append(f"allow ${lacks.max_node_usd_per_hour:.2f}/h for a node")
    if lacks.max_nodes is not None:
        wishes.append(f"allow {lacks.max_nodes} nodes")
    return wishes


def _nodes(situation: Situation, lacking: float) -> list[str]:
    """Return how many nodes more would do, like the best value among those there are."""
    lacks = situation.shortfall
    if lacks is not None and lacks.add is not None:
        count, key = lacks.add.count, lacks.add.like
    else:
        best = _best_value(situation.offers, at_least=lacking / MAX_ADDED)
        if best is None:
            return ["add faster nodes"]
        count, key = ceil(lacking / (best.rollouts_per_s or 1.0) - 1e-9), best.key
    if count <= 0:
        return []
    name = printable(situation.names.get(key, key), max_chars=40)
    return [f"add {_count(count)} like {name}" if name else f"add {_count(count)}"]


def _best_value(offers: Sequence[NodeOffer], *, at_least: float) -> NodeOffer | None:
    """Return the offer whose rollouts cost least, of those that are not hopelessly slow."""
    known = [o for o in offers if o.rollouts_per_s and o.rollouts_per_s >= at_least]
    return min(
        known, key=lambda o: (o.usd_per_hour / (o.rollouts_per_s or 1.0), o.key), default=None
    )


def _busy(situation: Situation, found: Forecast) -> str:
    share = found.utilisation if situation.busy_share is None else situation.busy_share
    return f"learner {format_percent(share)} busy"


def _joined(busy: str, why: str, wishes: Sequence[str]) -> str:
    parts = [busy, why]
    if wishes:
        parts.append(", or ".join(wishes))
    return "; ".join(parts)


def _count(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
