"""One node, as the learner knows it, and what a heartbeat of it changed."""

from collections import Counter, deque
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Final

from echo2swarm.rates import WindowSum
from echo2swarm.selection.speed import Presence, SpeedMeter
from learner.nodes.sampling_record import SamplingRecord
from protocols.activation import Directive, NodeState, Trouble
from protocols.advert import NodeAdvert
from protocols.ids import PeerId
from protocols.reasons import Reason

_BROADCASTS_KEPT: Final = 8
"""The slowest of them is what work is planned by."""
_SMOOTHING: Final = 0.3
UNABLE: Final = frozenset({NodeState.DRAINING, NodeState.PAUSED})
"""In these a node takes no work, whatever is wanted of it."""


@dataclass(slots=True, kw_only=True)
class Node:
    """One node."""

    peer: PeerId
    session_id: str
    advert: NodeAdvert
    state: NodeState
    joined_at_s: float
    heard_at_s: float
    accepted: WindowSum
    presence: Presence
    sealed_advert: bytes = b""
    """What it said last of itself, as it was signed: what has been verified."""
    host: str = ""
    """From which address it comes, as the learner sees it; empty if that is not known."""
    work: SpeedMeter = field(default_factory=SpeedMeter)
    calibrated_tokens_per_s: float | None = None
    """What it says it did in a trial of its own; counts until it has delivered."""
    is_lost: bool = False
    directive: Directive = Directive.STANDBY
    why: str = "standby: just joined"
    no_work_why: str = ""
    """Set while it is active, and still gets no leases."""
    switched_at_s: float = -inf
    """When its directive last changed."""
    startup_s: float | None = None
    """From activation to the first accepted rollout, a moving average."""
    is_starting: bool = False
    """Whether it was activated, and nothing of it was accepted since."""
    applied_version: int | None = None
    ready_at_s: float | None = None
    """Since when it has been able to sample."""
    held_version: int | None = None
    held_back_until_s: float = -inf
    """Until when an evaluation kept it at one version; ``inf`` while one does."""
    broadcast_s: float | None = None
    """From publish to applied, the last time."""
    broadcasts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_BROADCASTS_KEPT))
    """The last ones."""
    rollout_s: float | None = None
    """From lease to last submission, a moving average."""
    num_accepted: int = 0
    num_trained: int = 0
    refusals: Counter[Reason] = field(default_factory=Counter)
    last_refusal: str = ""
    num_engine_restarts: int = 0
    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    sampling: SamplingRecord = field(default_factory=SamplingRecord)
    """What recomputing its rollouts tells of how they were sampled."""
    distrust: str = ""
    """Why nothing of it is wanted, until the time below."""
    distrusted_until_s: float = -inf
    trouble: Trouble | None = None
    """What it says keeps it from working."""
    superseded: dict[str, int] = field(default_factory=dict)
    """Earlier sessions, and how often they were heard of since a later one began."""
    twin_at_s: float | None = None
    """When another process was last seen to run under the same identity."""

    @property
    def full_why(self) -> str:
        """What it is told of its directive, and of the work it gets."""
        return f"{self.why}; {self.no_work_why}" if self.no_work_why else self.why

    def is_distrusted(self, now_s: float) -> bool:
        """Whether nothing of it is wanted now."""
        return now_s < self.distrusted_until_s

    @property
    def distrusted_why(self) -> str:
        """What it is told meanwhile."""
        return f"standby: {Reason.NOT_SAMPLED}: {self.distrust}"

    @property
    def is_visitor(self) -> bool:
        """Whether it has left, and nothing has come of it."""
        is_idle = self.applied_version is None and not self.payload_bytes_received
        is_blank = not self.num_accepted and not self.refusals
        return self.state is NodeState.LEFT and is_idle and is_blank

    @property
    def slow_broadcast_s(self) -> float | None:
        """How long versions take to be applied by it, few exceptions."""
        ranked = sorted(self.broadcasts_s)
        return ranked[int(0.8 * len(ranked))] if ranked else None

    @property
    def usual_broadcast_s(self) -> float | None:
        """How long versions usually take to be applied by it."""
        return median(self.broadcasts_s) if self.broadcasts_s else None

    def direct(self, directive: Directive, why: str, now_s: float) -> bool:
        """Tell it what to do from now on; returns whether that is something else."""
        self.why = why
        if directive is self.directive:
            return False
        self.directive, self.switched_at_s = directive, now_s
        self.is_starting = directive is Directive.ACTIVE
        return True

    def delivered(self, count: int, now_s: float) -> None:
        """Note accepted rollouts."""
        self.num_accepted += count
        self.accepted.add(count, now_s)
        self.work.add(count, now_s)
        if self.is_starting:
            self.is_starting = False
            took_s = now_s - self.switched_at_s
            before_s = took_s if self.startup_s is None else self.startup_s
            self.startup_s = before_s + _SMOOTHING * (took_s - before_s)

    def lost(self, now_s: float) -> None:
        """Note that it is gone."""
        self.is_lost = True
        self.work.set_working(False, now_s)
        self.presence.set_here(False, now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a heartbeat changed."""

    is_new_node: bool = False
    is_new_session: bool = False
    has_left: bool = False
    is_superseded: bool = False
    """It is of an earlier session, though the later one is alive: nothing was taken in."""
    is_new_twin: bool = False
    """It shows, for the first time, that two processes run under one identity."""
    evicted: PeerId | None = None
    """A node that was forgotten to make room for this one."""
    no_room_why: str = ""
    """Set if there is no room for it, so that nothing was taken in."""
    is_back: bool = False
    """The node had been lost."""
    state_before: NodeState | None = None
    """Set if the state changed."""
    applied_version: int | None = None
    """Set if it is another than before."""
    broadcast_s: float | None = None
    """From publish to applied, if this is the first heartbeat that shows it."""
    is_new_trouble: bool = False
    """It says that something keeps it from working, and did not say so before."""
