"""The offers as arrays: one integer variable for all that are alike.

Of each kind there are up to two variables: those that work already, and those that don't,
which differ in price (hysteresis) and in what may become of them (dwell).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from echo2swarm.scheduling.selection.broadcast_cost import LinkModel
from echo2swarm.scheduling.selection.offers import (
    Limits,
    Need,
    NodeOffer,
    running_usd_per_hour,
    starting_usd_per_hour,
)

Floats = NDArray[np.float64]

ACTIVE_DISCOUNT: Final = 0.9
"""Those that work are priced so much lower: nobody is replaced for a few percent."""
_TIE: Final = 1e-7
"""Of the highest price, added to each: of sets that cost the same the smaller one is chosen."""
TOLERANCE: Final = 1e-6
"""Relative; the solver's own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectionVariables:
    """Those offers whose speed is known and that may work, as variables.

    Arrays have one element per variable.
    """

    need: Need
    limits: Limits
    members: tuple[tuple[NodeOffer, ...], ...]
    """The offers behind each variable, in the order in which they are taken."""
    is_active: NDArray[np.bool_]
    """Whether the variable is of those that work."""
    cost: Floats
    """USD per hour, what is minimised: discounts and start-up included."""
    running: Floats
    """USD per hour, what is paid while they work."""
    mu: Floats
    """Rollouts per second."""
    var: Floats
    """Of that."""
    upper: Floats
    links: LinkModel | None
    """None if broadcast does not depend on who is chosen."""

    @property
    def size(self) -> int:
        """The number of variables."""
        return len(self.members)

    @property
    def present(self) -> Floats:
        """The set that works now."""
        return np.where(self.is_active, self.upper, 0.0)

    def assured(self, x: Floats) -> float:
        """Return what ``x`` supplies for sure, in rollouts per second."""
        return float(self.mu @ x - self.need.z * np.sqrt(self.var @ x))

    def broadcast_s(self, x: Floats) -> float:
        """Return how long it takes to bring new weights to all of ``x``."""
        return self.need.broadcast_s if self.links is None else self.links.broadcast_s(x)

    def is_allowed(self, x: Floats) -> bool:
        """Whether the owner's limits allow ``x``."""
        most_nodes = inf if self.limits.max_nodes is None else self.limits.max_nodes
        budget = inf if self.limits.max_usd_per_hour is None else self.limits.max_usd_per_hour
        return bool(
            x.sum() <= most_nodes + 0.5
            and self.running @ x <= budget * (1 + TOLERANCE) + 1e-9
            and np.all(x <= self.upper + 0.5)
            and np.all(x >= -0.5)
        )

    def suffices(self, x: Floats) -> bool:
        """Whether ``x`` keeps the learner busy."""
        needed = self.need.needed_rollouts_per_s(self.broadcast_s(x))
        return self.assured(x) >= needed * (1 - TOLERANCE)

    def is_hopeless(self) -> bool:
        """Whether all together would be too few even if weights came at once."""
        at_once_s = self.need.broadcast_s if self.links is None else 0.0
        return float(self.mu @ self.upper) < self.need.needed_rollouts_per_s(at_once_s) * (
            1 - TOLERANCE
        )

    def is_solution(self, x: Floats) -> bool:
        """Whether ``x`` is allowed and suffices."""
        return self.is_allowed(x) and self.suffices(x)

    def counts(self, x: Floats) -> dict[str, int]:
        """Return how many of each offer ``x`` takes; those of which it takes none are left out."""
        taken: dict[str, int] = {}
        for members, is_active, number in zip(self.members, self.is_active, x, strict=True):
            left = round(float(number))
            for offer in members:
                room = offer.num_active if is_active else offer.count - offer.num_active
                if left <= 0:
                    break
                taken[offer.key] = taken.get(offer.key, 0) + min(room, left)
                left -= min(room, left)
        return taken


def market_of(
    offers: Sequence[NodeOffer],
    need: Need,
    limits: Limits,
    *,
    discount: float = ACTIVE_DISCOUNT,
    is_dwelling: bool = True,
) -> SelectionVariables:
    """Return ``offers``, whose speeds are known, as variables.

    Args:
        offers: they.
        need: what is needed.
        limits: what the owner allows.
        discount: on the price of those that work.
        is_dwelling: whether those that stopped a moment ago are left alone.
    """
    grouped: dict[tuple[Any, ...], list[NodeOffer]] = {}
    for offer in sorted(offers, key=lambda offer: offer.key):
        alike = (
            offer.usd_per_hour,
            offer.rollouts_per_s,
            offer.rollouts_per_s_std,
            offer.upload_bytes_per_s,
            offer.download_bytes_per_s,
            offer.load_s,
            offer.startup_s,
            offer.expected_stay_s,
            offer.egress_usd_per_gb,
        )
        if offer.num_active:
            grouped.setdefault((True, *alike), []).append(offer)
        may_start = offer.may_start or not is_dwelling
        if offer.num_active < offer.count and may_start:
            grouped.setdefault((False, *alike), []).append(offer)
    kinds = [members[0] for members in grouped.values()]
    is_active = np.array([key[0] for key in grouped], dtype=bool)
    upper = np.array(
        [
            sum(o.num_active if key[0] else o.count - o.num_active for o in members)
            for key, members in grouped.items()
        ],
        dtype=float,
    )
    running = np.array([running_usd_per_hour(o, need) for o in kinds], dtype=float)
    starting = np.array([starting_usd_per_hour(o) for o in kinds], dtype=float)
    full = running + np.where(is_active, 0.0, starting)
    tie = _TIE * float(full.max(initial=0.0)) or _TIE
    return SelectionVariables(
        need=need,
        limits=limits,
        members=tuple(tuple(members) for members in grouped.values()),
        is_active=is_active,
        cost=(full + tie) * np.where(is_active, discount, 1.0),
        running=running,
        mu=np.array([o.rollouts_per_s or 0.0 for o in kinds], dtype=float),
        var=np.array([o.rollouts_per_s_std**2 for o in kinds], dtype=float),
        upper=upper,
        links=LinkModel.of(kinds, need),
    )


def fill_links(offers: Sequence[NodeOffer]) -> list[NodeOffer]:
    """Return the offers with the median for rates that are unknown; as they are if all are."""
    up = _median([offer.upload_bytes_per_s for offer in offers])
    down = _median([offer.download_bytes_per_s for offer in offers])
    return [
        offer
        if offer.upload_bytes_per_s is not None and offer.download_bytes_per_s is not None
        else replace(
            offer,
            upload_bytes_per_s=up if offer.upload_bytes_per_s is None else offer.upload_bytes_per_s,
            download_bytes_per_s=(
                down if offer.download_bytes_per_s is None else offer.download_bytes_per_s
            ),
        )
        for offer in offers
    ]


def _median(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None
