"""Whether to try nodes of unknown speed; and all nodes, while what is needed is unknown."""

from collections.abc import Sequence
from math import inf

from echo2swarm.scheduling.selection import reasons
from echo2swarm.scheduling.selection.offers import Limits, NodeOffer, OfferDecision, Selection
from echo2swarm.scheduling.selection.variables import ACTIVE_DISCOUNT


def try_unknown(
    unknown: Sequence[NodeOffer],
    limits: Limits,
    choices: dict[str, OfferDecision],
    *,
    num_nodes: int = 0,
    usd_per_hour: float = 0.0,
    is_enough: bool = False,
) -> float:
    """Decide on those of unknown speed, the cheapest first.

    Args:
        unknown: they.
        limits: what the owner allows.
        choices: where to enter what becomes of them.
        num_nodes: how many others work.
        usd_per_hour: what these cost.
        is_enough: whether these supply enough; then only a few are tried.

    Returns:
        What those cost that work.
    """
    most_nodes = inf if limits.max_nodes is None else limits.max_nodes
    budget = inf if limits.max_usd_per_hour is None else limits.max_usd_per_hour
    num_trials, spent_usd = 0, 0.0
    for offer in sorted(unknown, key=lambda o: _turn(o, is_enough=is_enough)):
        price = offer.usd_per_hour
        left_usd = budget - usd_per_hour - spent_usd + 1e-9
        number = 0
        if num_nodes >= most_nodes or price > left_usd:
            why = reasons.over_limit(offer, num_nodes, usd_per_hour + spent_usd, limits)
        elif not is_enough:
            room = min(most_nodes - num_nodes, offer.count)
            number = int(min(room, left_usd // price) if price else room)
            why = reasons.TRIED if offer.is_ready else reasons.GETS_READY
        elif not offer.is_ready:
            why = reasons.NOT_READY
        elif num_trials >= limits.max_trials:
            why = reasons.NOT_TRIED
        else:
            number, why = 1, reasons.TRIED
            num_trials += 1
        num_nodes += number
        spent_usd += number * price
        choices[offer.key] = OfferDecision(number, why)
    return spent_usd


def all_that_may(
    offers: Sequence[NodeOffer], limits: Limits, choices: dict[str, OfferDecision]
) -> Selection:
    """Let all of ``offers`` work that the limits allow, until it is known what is needed.

    Args:
        offers: those that can work.
        limits: what the owner allows.
        choices: what is decided of others already.
    """
    usd_per_hour = try_unknown(offers, limits, choices)
    known = [o for o in offers if o.rollouts_per_s is not None and o.is_ready]
    for offer in known:
        if (number := choices[offer.key].count) > 0:
            choices[offer.key] = OfferDecision(number, reasons.ALL)
    counts = [(offer, choices[offer.key].count) for offer in known]
    return Selection(
        choices=choices,
        usd_per_hour=usd_per_hour,
        broadcast_s=0.0,
        supplied_rollouts_per_s=sum(n * (o.rollouts_per_s or 0.0) for o, n in counts),
        supplied_std=sum(n * o.rollouts_per_s_std**2 for o, n in counts) ** 0.5,
        needed_rollouts_per_s=None,
        is_feasible=True,
        method="all",
    )


def _turn(offer: NodeOffer, *, is_enough: bool) -> tuple[bool, float, str]:
    """Return by what offers of unknown speed are put in order."""
    discount = ACTIVE_DISCOUNT if offer.is_active else 1.0
    # A trial that has begun is not broken off for a cheaper one, where it is only a trial.
    return not (is_enough and offer.is_active), offer.usd_per_hour * discount, offer.key
