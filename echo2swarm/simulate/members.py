"""Nodes as the simulated learner knows them: what it was told, and what it measured."""

from dataclasses import dataclass, field
from math import inf

from echo2swarm.scheduling.nodes.broadcast_times import BroadcastTimes
from echo2swarm.scheduling.selection import NodeOffer
from echo2swarm.scheduling.selection.hysteresis import Dwell
from echo2swarm.scheduling.selection.speed import Presence, Speed, SpeedMeter
from echo2swarm.simulate.node import SimNode
from protocols.ids import PeerId


@dataclass(slots=True)
class SimulatedMember:
    """One node."""

    node: SimNode
    session: int
    joined_at_s: float
    claimed_rollouts_per_s: float
    presence: Presence
    work: SpeedMeter = field(default_factory=SpeedMeter)
    is_present: bool = False
    is_active: bool = False
    why: str = "standby: just joined"
    dwell: Dwell = field(default_factory=lambda: Dwell(is_active=False, since_s=-inf))
    applied_version: int | None = None
    broadcasts: BroadcastTimes = field(default_factory=BroadcastTimes)
    num_accepted: int = 0
    num_refused: int = 0
    num_leases: int = 0
    """In hand."""
    offer: NodeOffer | None = None
    """To the selector, the last time."""
    offer_facts: tuple[float | bool | None, ...] = ()
    """What that rests on."""
    last_speed: tuple[int, Speed] | None = None
    """For how many accepted rollouts, while it had no work."""

    def speed(self, now_s: float, *, prior_per_s: float) -> Speed | None:
        """Return what is known of how fast it is."""
        if self.num_leases or not self.num_accepted:
            return self.work.speed(now_s, prior_per_s=prior_per_s)
        # Without work nothing changes; thousands of nodes may be so.
        if self.last_speed is None or self.last_speed[0] != self.num_accepted:
            speed = self.work.speed(now_s, prior_per_s=prior_per_s)
            self.last_speed = None if speed is None else (self.num_accepted, speed)
        return self.last_speed[1] if self.last_speed else None

    @property
    def measured_per_s(self) -> float:
        """What it did per second of work, lately; 0 before it did anything."""
        if self.last_speed is not None and self.last_speed[0] == self.num_accepted:
            return self.last_speed[1].rollouts_per_s
        return self.work.per_s() or 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it could sample at once."""
        return self.applied_version is not None

    @property
    def peer(self) -> PeerId:
        """Its name."""
        return self.node.peer
