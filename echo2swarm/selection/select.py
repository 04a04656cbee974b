"""Choose who works: pure, total, and the same answer to the same question.

    minimise  sum c_i x_i   subject to   sum mu_i x_i - z sigma(x) >= (1 + h) mu_req(B(x))

and to the owner's limits, where B(x) is how long a broadcast takes to all who are chosen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import Final

from echo2swarm.selection import words
from echo2swarm.selection.exact import Proof, cheapest_bound, exact
from echo2swarm.selection.greedy import greedy
from echo2swarm.selection.hysteresis import is_in_band, is_near
from echo2swarm.selection.links import alone_s
from echo2swarm.selection.market import Floats, Market, fill_links, market_of
from echo2swarm.selection.offers import Choice, Limits, Need, Offer, Selection
from echo2swarm.selection.shortfall import allowed, shortfall_of
from echo2swarm.selection.supply import most_supply

DEFAULT_LIMIT_S: Final = 5.0


class Effort(StrEnum):
    """How hard to look."""

    GREEDY = "greedy"
    """Milliseconds, usually within a percent of the best."""
    EXACT = "exact"
    """The best there is, or the best that was found in time."""


def select(
    offers: Iterable[Offer],
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
        return _without_need(sorted_out, limits)
    market = market_of(sorted_out.usable, need, limits)
    chosen = _choose(market, sorted_out.usable, effort, left_s)
    return _answer(sorted_out, market, chosen, limits)


@dataclass(frozen=True, slots=True)
class _SortedOut:
    """The offers, and what is known of some before any is compared with another."""

    offers: Sequence[Offer]
    usable: Sequence[Offer]
    unknown: Sequence[Offer]
    """Those that might be tried."""
    why_not: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Chosen:
    x: Floats
    method: str
    bound: float | None = None
    num_solved: int = 0


def _sort_out(offers: Sequence[Offer], need: Need | None, limits: Limits) -> _SortedOut:
    why_not: dict[str, str] = {}
    usable, unknown = [], []
    is_met_by_any = need is not None and isfinite(need.required_rollouts_per_s(0.0))
    for offer in offers:
        if not allowed([offer], limits):
            why_not[offer.key] = words.too_dear(offer, limits)
        elif offer.rollouts_per_s == 0:
            why_not[offer.key] = words.DELIVERS_NOTHING
        elif (
            need is not None
            and is_met_by_any
            and need.has_links
            and alone_s(offer, need) >= need.max_broadcast_s
        ):
            why_not[offer.key] = words.too_slow_link(alone_s(offer, need), need)
        elif offer.rollouts_per_s is None or not offer.is_ready:
            unknown.append(offer)
        else:
            usable.append(offer)
    return _SortedOut(offers, usable, unknown, why_not)


def _choose(
    market: Market, offers: Sequence[Offer], effort: Effort, left_s: Callable[[], float]
) -> _Chosen | None:
    """Return the set that is to work; None if none suffices."""
    plain = market_of(offers, market.need, market.limits, discount=1.0).undwelled()
    present = market.present
    may_keep = market.is_allowed(present) and is_in_band(market, present)
    present_usd = float(market.running @ present)
    if may_keep and effort is Effort.EXACT and is_near(present_usd, cheapest_bound(plain)):
        return _Chosen(present, "kept")
    found = _solve(market, effort, left_s)
    if found is None and market.lower.any():
        # What must stay stands in the way of what is needed, or the owner's limits have changed.
        found = _solve(market.undwelled(), effort, left_s)
    if found is not None and may_keep and is_near(present_usd, float(market.running @ found.x)):
        return _Chosen(present, "kept", found.bound, found.num_solved)
    return found


def _solve(market: Market, effort: Effort, left_s: Callable[[], float]) -> _Chosen | None:
    start = greedy(market)
    if effort is Effort.GREEDY:
        return None if start is None else _Chosen(start, "greedy")
    proof: Proof = exact(market, start, left_s=left_s)
    if proof.x is None:
        return None
    method = "exact" if proof.is_optimal else "time limit"
    return _Chosen(proof.x, method, proof.bound, proof.num_solved)


def _answer(
    sorted_out: _SortedOut, market: Market, chosen: _Chosen | None, limits: Limits
) -> Selection:
    need = market.need
    is_feasible = chosen is not None
    chosen = chosen or _Chosen(most_supply(market), "all")
    x = chosen.x
    counts = market.counts(x)
    broadcast_s = market.broadcast_s(x)
    supplied, needed = float(market.mu @ x), need.needed_rollouts_per_s(broadcast_s)
    lacking = None
    if not is_feasible:
        known = [o for o in sorted_out.offers if o.rollouts_per_s and o.is_ready]
        lacking = shortfall_of(market, x, known, need, limits)
    usd_per_hour = float(market.running @ x)
    num_nodes = round(float(x.sum()))
    choices = {key: Choice(0, why) for key, why in sorted_out.why_not.items()}
    for offer in sorted_out.usable:
        number = counts.get(offer.key, 0)
        if not number and is_feasible:
            rests = not offer.may_start and not offer.is_active
            why = words.RESTS if rests else words.not_needed(offer, supplied, needed)
        elif not number:
            why = words.over_limit(offer, num_nodes, usd_per_hour, limits)
        elif chosen.method == "kept":
            why = words.KEPT
        elif is_feasible and not offer.may_stop:
            why = words.STAYS
        else:
            why = words.chosen(offer, supplied, needed)
        choices[offer.key] = Choice(number, why)
    tried_usd = _try_unknown(
        sorted_out.unknown,
        limits,
        choices,
        num_nodes=num_nodes,
        usd_per_hour=usd_per_hour,
        is_enough=is_feasible,
    )
    return Selection(
        choices={offer.key: choices[offer.key] for offer in sorted_out.offers},
        usd_per_hour=usd_per_hour + tried_usd,
        broadcast_s=broadcast_s,
        supplied_rollouts_per_s=supplied,
        supplied_std=float(market.var @ x) ** 0.5,
        needed_rollouts_per_s=needed,
        is_feasible=is_feasible,
        is_kept=chosen.method == "kept",
        method=chosen.method,
        bound_usd_per_hour=chosen.bound,
        shortfall=lacking,
        num_solved=chosen.num_solved,
    )


def _try_unknown(
    unknown: Sequence[Offer],
    limits: Limits,
    choices: dict[str, Choice],
    *,
    num_nodes: int,
    usd_per_hour: float,
    is_enough: bool,
) -> float:
    """Decide on those of unknown speed, those that work first; returns what they cost."""
    most_nodes = inf if limits.max_nodes is None else limits.max_nodes
    budget = inf if limits.max_usd_per_hour is None else limits.max_usd_per_hour
    num_trials, spent_usd = 0, 0.0
    for offer in sorted(unknown, key=lambda o: (not o.is_active, o.usd_per_hour, o.key)):
        price = offer.usd_per_hour
        is_known_to_lack = offer.rollouts_per_s is not None or not offer.is_ready
        number = 0
        if num_nodes >= most_nodes or usd_per_hour + spent_usd + price > budget + 1e-9:
            why = words.over_limit(offer, num_nodes, usd_per_hour + spent_usd, limits)
        elif not is_enough:
            room = min(most_nodes - num_nodes, offer.count)
            if price:
                room = min(room, (budget - usd_per_hour - spent_usd + 1e-9) // price)
            number = int(room)
            why = words.TRIED if offer.is_ready else words.GETS_READY
        elif is_known_to_lack:
            why = words.NOT_READY
        elif num_trials >= limits.max_trials:
            why = words.NOT_TRIED
        else:
            number, why = 1, words.TRIED
            num_trials += 1
        num_nodes += number
        spent_usd += number * price
        choices[offer.key] = Choice(number, why)
    return spent_usd


def _without_need(sorted_out: _SortedOut, limits: Limits) -> Selection:
    """Let all work that the limits allow, the cheapest first, until it is known what is needed."""
    choices = {key: Choice(0, why) for key, why in sorted_out.why_not.items()}
    waiting = [*sorted_out.usable, *sorted_out.unknown]
    usd_per_hour = _try_unknown(
        waiting, limits, choices, num_nodes=0, usd_per_hour=0.0, is_enough=False
    )
    for offer in sorted_out.usable:
        if choices[offer.key].is_active:
            choices[offer.key] = Choice(choices[offer.key].count, words.ALL)
    chosen = [(o, choices[o.key].count) for o in sorted_out.usable if choices[o.key].count]
    return Selection(
        choices={offer.key: choices[offer.key] for offer in sorted_out.offers},
        usd_per_hour=usd_per_hour,
        broadcast_s=0.0,
        supplied_rollouts_per_s=sum(n * (o.rollouts_per_s or 0.0) for o, n in chosen),
        supplied_std=sum(n * o.rollouts_per_s_std**2 for o, n in chosen) ** 0.5,
        needed_rollouts_per_s=None,
        is_feasible=True,
        method="all",
    )
