"""Nodes as the simulated learner knows them: what it was told, and what it measured."""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Final

from echo2swarm.rates import WorkingRate
from echo2swarm.selection import Offer
from echo2swarm.selection.hysteresis import Dwell
from echo2swarm.swarm_sim.node import SimNode
from protocols.ids import PeerId

HALF_LIFE_S: Final = 120.0
_BROADCASTS_KEPT: Final = 8
"""The slowest of them is what work is planned by."""


@dataclass(slots=True)
class Member:
    """One node."""

    node: SimNode
    session: int
    joined_at_s: float
    claimed_rollouts_per_s: float
    work: WorkingRate = field(default_factory=lambda: WorkingRate(HALF_LIFE_S))
    is_present: bool = True
    is_active: bool = False
    why: str = "standby: just joined"
    dwell: Dwell = field(default_factory=lambda: Dwell(is_active=False, since_s=-inf))
    applied_version: int | None = None
    broadcasts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_BROADCASTS_KEPT))
    num_accepted: int = 0
    num_refused: int = 0
    num_leases: int = 0
    """In hand."""
    offer: Offer | None = None
    """To the selector, the last time."""
    offer_facts: tuple[float | bool, ...] = ()
    """What that rests on."""

    @property
    def is_ready(self) -> bool:
        """Whether it could sample at once."""
        return self.applied_version is not None

    @property
    def peer(self) -> PeerId:
        """Its name."""
        return self.node.peer

    @property
    def slow_broadcast_s(self) -> float | None:
        """How long versions take to be applied by it, few exceptions."""
        return max(self.broadcasts_s, default=None)
