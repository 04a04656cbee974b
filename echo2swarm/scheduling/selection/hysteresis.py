"""Against flapping: when the set that works is kept, and who may be switched yet.

Measurements and prices are noisy. Chosen anew each time, nodes at the margin would come and
go, and each coming costs a start-up. So a set is chosen with headroom h, and kept while what
it supplies for sure is from ``1 + h / 2`` to ``1 + h + 0.15`` times what is required (with
h = 0.1: from 1.05 to 1.25) and it costs at most a tenth more than the cheapest.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Final

from echo2swarm.scheduling.selection.variables import Floats, SelectionVariables

KEEP_ABOVE: Final = 0.5
"""Of the headroom: what may be used up before the set is chosen anew."""
KEEP_BELOW: Final = 0.15
"""Beyond the headroom: what may be superfluous."""
KEEP_COST: Final = 1.1
DWELL_STARTUPS: Final = 2.0
"""A node stays as it was switched for this many of its start-ups."""


def is_in_band(market: SelectionVariables, x: Floats) -> bool:
    """Whether ``x`` supplies neither too little nor plainly too much."""
    need = market.need
    required = need.required_rollouts_per_s(market.broadcast_s(x))
    if not isfinite(required) or not x.any():
        return False
    share = market.assured(x) / required
    return 1 + KEEP_ABOVE * need.headroom <= share <= 1 + need.headroom + KEEP_BELOW


def is_near(usd_per_hour: float, best_usd_per_hour: float) -> bool:
    """Whether a set is as good as the cheapest."""
    return usd_per_hour <= KEEP_COST * best_usd_per_hour + 1e-9


@dataclass(frozen=True, slots=True)
class Dwell:
    """When one node was last switched on or off."""

    is_active: bool
    since_s: float

    def switched(self, *, is_active: bool, now_s: float) -> "Dwell":
        """Return the state after it is told to work or to stand by."""
        return self if is_active is self.is_active else Dwell(is_active, now_s)

    def may_switch(self, startup_s: float, now_s: float) -> bool:
        """Whether it has been as it is for long enough."""
        return now_s - self.since_s >= DWELL_STARTUPS * startup_s
