"""Choose who works: pure, total, and the same answer to the same question.

    minimise  sum c_i x_i   subject to   sum mu_i x_i - z sigma(x) >= (1 + h) mu_req(B(x))

and to the owner's limits, where B(x) is how long a broadcast takes to all who are chosen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import Final

from echo2swarm.scheduling.selection import reasons
from echo2swarm.scheduling.selection.branch_and_bound import Proof, cheapest_bound, exact
from echo2swarm.scheduling.selection.broadcast_cost import alone_s
from echo2swarm.scheduling.selection.greedy import greedy
from echo2swarm.scheduling.selection.hysteresis import is_in_band, is_near
from echo2swarm.scheduling.selection.offers import (
    Limits,
    Need,
    NodeOffer,
    OfferDecision,
    Selection,
    Shortfall,
    running_usd_per_hour,
)
from echo2swarm.scheduling.selection.shortfall import allowed, shortfall_of
from echo2swarm.scheduling.selection.supply import most_supply
from echo2swarm.scheduling.selection.trials import all_that_may, try_unknown
from echo2swarm.scheduling.selection.variables import (
    ACTIVE_DISCOUNT,
    Floats,
    SelectionVariables,
    fill_links,
    market_of,
)

DEFAULT_LIMIT_S: Final = 5.0
KEPT: Final = "kept"
"""The method of leaving everything as it is."""


class Effort(StrEnum):
    """How hard to look."""

    GREEDY = "greedy"
    """Milliseconds, usually within a percent of the best."""
    EXACT = "exact"
    """The best there is, or the best that was found in time."""


def select(
    offers: Iterable[NodeOffer],
    need: Need | None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    *,
    effort: Effort = Effort.EXACT,
    left_s: Callable[[], float] = lambda: DEFAULT_LIMIT_S,
) -> Selection:
    """Choose among ``offers``.

    Args:
        offers: who there is; keys must differ.
        need: what keeps the learner busy; None while that isn't known: then all work.
        limits: what the owner allows.
        effort: how hard to look.
        left_s: the time that may still be taken, asked now and then; each integer program
            is held to it.

    Raises:
        ValueError: two offers have the same key.
    """
    listed = sorted(fill_links(list(offers)), key=lambda offer: offer.key)
    if len({offer.key for offer in listed}) != len(listed):
        raise ValueError("two offers have the same key")
    sorted_out = _sort_out(listed, need, limits)
    if need is None:
        choices = {key: OfferDecision(0, why) for key, why in sorted_out.why_not.items()}
        return all_that_may([*sorted_out.usable, *sorted_out.unknown], limits, choices)
    market = market_of(sorted_out.usable, need, limits)
    undwelling = market_of(sorted_out.usable, need, limits, is_dwelling=False)
    for each in (market, undwelling):
        # That somebody stopped only a moment ago goes after what is needed.
        if (chosen := _choose(each, sorted_out.usable, effort, left_s)) is not None:
            return _answer(sorted_out, each, chosen, None)
    everybody = market_of([*sorted_out.usable, *sorted_out.late], need, limits, is_dwelling=False)
    x = most_supply(everybody)
    known = [o for o in listed if o.rollouts_per_s and o.is_ready]
    lacking = shortfall_of(everybody, x, known, need, limits)
    return _answer(sorted_out, everybody, _Chosen(x, "all"), lacking)


@dataclass(frozen=True, slots=True)
class _SortedOut:
    """The offers, and what is known of some before any is compared with another."""

    offers: Sequence[NodeOffer]
    usable: Sequence[NodeOffer]
    unknown: Sequence[NodeOffer]
    """Those that might be tried."""
    late: Sequence[NodeOffer]
    """Those whose link is too slow for the learner never to wait, but not for it to wait."""
    why_not: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Chosen:
    x: Floats
    method: str
    bound: float | None = None
    num_solved: int = 0


def _sort_out(offers: Sequence[NodeOffer], need: Need | None, limits: Limits) -> _SortedOut:
    why_not: dict[str, str] = {}
    usable: list[NodeOffer] = []
    unknown: list[NodeOffer] = []
    late: list[NodeOffer] = []
    is_met_by_any = need is not None and isfinite(need.required_rollouts_per_s(0.0))
    for offer in offers:
        if not allowed([offer], limits):
            why_not[offer.key] = reasons.too_dear(offer, limits)
        elif offer.rollouts_per_s == 0:
            why_not[offer.key] = reasons.DELIVERS_NOTHING
        elif offer.rollouts_per_s is None or not offer.is_ready:
            unknown.append(offer)
        elif is_met_by_any and need and alone_s(offer, need) >= need.max_broadcast_s:
            late.append(offer)
        else:
            usable.append(offer)
    return _SortedOut(offers, usable, unknown, late, why_not)


def _choose(
    market: SelectionVariables,
    offers: Sequence[NodeOffer],
    effort: Effort,
    left_s: Callable[[], float],
) -> _Chosen | None:
    """Return the set that is to work; None if none suffices."""
    plain = market_of(offers, market.need, market.limits, discount=1.0, is_dwelling=False)
    present = market.present
    may_keep = market.is_allowed(present) and is_in_band(market, present)
    present_usd = float(market.running @ present)
    if may_keep and effort is Effort.EXACT and is_near(present_usd, cheapest_bound(plain)):
        return _Chosen(present, KEPT)
    found = _solve(market, effort, left_s)
    if found is not None and may_keep and is_near(present_usd, float(market.running @ found.x)):
        return _Chosen(present, KEPT, found.bound, found.num_solved)
    return found


def _solve(
    market: SelectionVariables, effort: Effort, left_s: Callable[[], float]
) -> _Chosen | None:
    start = greedy(market)
    if effort is Effort.GREEDY:
        return None if start is None else _Chosen(start, "greedy")
    proof: Proof = exact(market, start, left_s=left_s)
    if proof.x is None:
        return None
    method = "exact" if proof.is_optimal else "time limit"
    return _Chosen(proof.x, method, proof.bound, proof.num_solved)


def _answer(
    sorted_out: _SortedOut, market: SelectionVariables, chosen: _Chosen, lacking: Shortfall | None
) -> Selection:
    need, limits, x = market.need, market.limits, chosen.x
    broadcast_s = market.broadcast_s(x)
    counts = market.counts(x)
    held = _held(sorted_out.usable, counts, need, limits)
    facts = _Facts(
        counts=counts,
        held=held,
        num_nodes=round(float(x.sum())) + sum(held.values()),
        usd_per_hour=float(market.running @ x) + _usd_per_hour(sorted_out.usable, held, need),
        supplied=float(market.mu @ x),
        needed=need.needed_rollouts_per_s(broadcast_s),
        is_enough=lacking is None,
        is_kept=chosen.method == KEPT,
    )
    choices = {key: OfferDecision(0, why) for key, why in sorted_out.why_not.items()}
    for offer in sorted_out.late:
        why = reasons.too_slow_link(alone_s(offer, need), need)
        number = facts.counts.get(offer.key, 0)
        choices[offer.key] = OfferDecision(number, _why(offer, facts, limits) if number else why)
    for offer in sorted_out.usable:
        number = facts.counts.get(offer.key, 0) + held.get(offer.key, 0)
        choices[offer.key] = OfferDecision(number, _why(offer, facts, limits))
    tried_usd = try_unknown(
        [*sorted_out.unknown, *_promising(sorted_out.usable, facts)],
        limits,
        choices,
        num_nodes=facts.num_nodes,
        usd_per_hour=facts.usd_per_hour,
        is_enough=facts.is_enough,
    )
    return Selection(
        choices={offer.key: choices[offer.key] for offer in sorted_out.offers},
        usd_per_hour=facts.usd_per_hour + tried_usd,
        broadcast_s=broadcast_s,
        supplied_rollouts_per_s=facts.supplied,
        supplied_std=float(market.var @ x) ** 0.5,
        needed_rollouts_per_s=facts.needed,
        is_feasible=facts.is_enough,
        is_kept=facts.is_kept,
        method=chosen.method,
        bound_usd_per_hour=chosen.bound,
        shortfall=lacking,
        num_solved=chosen.num_solved,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What was chosen, in numbers."""

    counts: dict[str, int]
    held: dict[str, int]
    """Those that work on only because they began a moment ago."""
    num_nodes: int
    usd_per_hour: float
    supplied: float
    needed: float
    is_enough: bool
    is_kept: bool


def _held(
    offers: Sequence[NodeOffer], counts: dict[str, int], need: Need, limits: Limits
) -> dict[str, int]:
    """Return those that weren't chosen, but began only a moment ago; nobody gives way to them.

    Nor does a limit: those for which there is no room stop at once, the dearest first.
    """
    held: dict[str, int] = {}
    num_nodes = sum(counts.values())
    usd_per_hour = _usd_per_hour(offers, counts, need)
    most_nodes = inf if limits.max_nodes is None else limits.max_nodes
    budget = inf if limits.max_usd_per_hour is None else limits.max_usd_per_hour
    for offer in sorted(offers, key=lambda o: (o.usd_per_hour, o.key)):
        if offer.may_stop:
            continue
        price = running_usd_per_hour(offer, need)
        for _ in range(offer.num_active - counts.get(offer.key, 0)):
            if num_nodes + 1 <= most_nodes and usd_per_hour + price <= budget:
                held[offer.key] = held.get(offer.key, 0) + 1
                num_nodes += 1
                usd_per_hour += price
    return held


def _usd_per_hour(offers: Sequence[NodeOffer], counts: dict[str, int], need: Need) -> float:
    if not counts:
        return 0.0
    return sum(counts.get(o.key, 0) * running_usd_per_hour(o, need) for o in offers)


def _promising(offers: Sequence[NodeOffer], facts: _Facts) -> list[NodeOffer]:
    """Return those that weren't chosen, but might be if more was known of them."""
    if not facts.is_enough:
        return []
    chosen = [o for o in offers if o.key in facts.counts]
    dearest = max((_usd_per_rollout(o) for o in chosen), default=0.0)
    return [
        offer
        for offer in offers
        if not offer.is_measured
        and offer.key not in facts.counts
        and offer.key not in facts.held
        and _usd_per_rollout(offer) < dearest * ACTIVE_DISCOUNT
    ]


def _usd_per_rollout(offer: NodeOffer) -> float:
    return offer.usd_per_hour / 3600 / offer.rollouts_per_s if offer.rollouts_per_s else inf


def _why(offer: NodeOffer, facts: _Facts, limits: Limits) -> str:
    """Return why an offer that could be chosen was, or was not."""
    if offer.key in facts.counts:
        if facts.is_kept:
            return reasons.KEPT
        return reasons.chosen(offer, facts.needed) if facts.is_enough else reasons.ALL
    if offer.key in facts.held:
        return reasons.STAYS
    if not facts.is_enough:
        return reasons.over_limit(offer, facts.num_nodes, facts.usd_per_hour, limits)
    rests = not offer.may_start and not offer.is_active
    return reasons.RESTS if rests else reasons.not_needed(offer, facts.supplied, facts.needed)
