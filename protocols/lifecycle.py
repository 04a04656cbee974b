"""A node's life, without I/O; specification: ``docs/specs/lifecycle.md``.

What a node reports as its state follows from what happened to it, by the table
:data:`NEXT_STATE`. The caller tells what happened and performs the effects, in
order; how to reach a learner, run an engine or do work is its business::

    JOINING --learner found--> SYNCING --policy applied--> STANDBY <--> ACTIVE
       ^                          ^                           |           |
       +----- learner lost -------+------- engine died -------+-----------+

    any --stop requested--> DRAINING --drained--> LEFT <--run finished-- any
    any but those two --owner pauses--> PAUSED --owner resumes--> JOINING or SYNCING

Facts are remembered beside the state: whether a policy is applied, for SYNCING
is left at once where one is; its version, which never goes back while one engine
lives; and whether the learner is there, for where a pause ends.
"""

from dataclasses import dataclass
from typing import Final

from protocols.errors import LocalProtocolError
from protocols.heartbeat import NodeState
from protocols.ids import PolicyVersion

# What can happen.


@dataclass(frozen=True, slots=True)
class LearnerFound:
    """The learner answered a heartbeat."""


@dataclass(frozen=True, slots=True)
class LearnerLost:
    """It has not answered for too long."""


@dataclass(frozen=True, slots=True)
class PolicyApplied:
    """The engine samples with this version from now on."""

    version: PolicyVersion


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine is gone, and with it the applied policy."""

    why: str


@dataclass(frozen=True, slots=True)
class Activate:
    """The learner wants work from this node; it says so with each heartbeat."""


@dataclass(frozen=True, slots=True)
class Deactivate:
    """The learner wants none."""


@dataclass(frozen=True, slots=True)
class OwnerPaused:
    """The contributor wants the machine for something else, for now."""


@dataclass(frozen=True, slots=True)
class OwnerResumed:
    """The pause is over."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The contributor wants the machine back."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing is in hand any more."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The learner says that the run is over."""


Event = (
    LearnerFound
    | LearnerLost
    | PolicyApplied
    | EngineDied
    | Activate
    | Deactivate
    | OwnerPaused
    | OwnerResumed
    | StopRequested
    | Drained
    | RunFinished
)

# What is to be done about it.


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the learner of the new state now, not at the next heartbeat."""

    state: NodeState


@dataclass(frozen=True, slots=True)
class TakeWork:
    """Ask for leases from now on."""


@dataclass(frozen=True, slots=True)
class StopTakingWork:
    """Ask for no more; what is in hand is finished."""


@dataclass(frozen=True, slots=True)
class HandBackWork:
    """Give back what is in hand and was not generated."""

    why: str


@dataclass(frozen=True, slots=True)
class PauseWork:
    """Ask for no more, finish what the engine has begun, give back all else."""


@dataclass(frozen=True, slots=True)
class DrainWork:
    """Ask for no more, finish what is begun, give back the rest; then say :class:`Drained`."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End."""

    is_run_finished: bool


Effect = Announce | TakeWork | StopTakingWork | HandBackWork | PauseWork | DrainWork | Leave

_J, _S, _B, _A, _D, _L, _P = (
    NodeState.JOINING,
    NodeState.SYNCING,
    NodeState.STANDBY,
    NodeState.ACTIVE,
    NodeState.DRAINING,
    NodeState.LEFT,
    NodeState.PAUSED,
)
_BUG: Final = None

# Rows: what happens. Columns: in which state. None: it can't happen there, so it is a bug here.
# The same state: nothing comes of it, or only the effects that the event itself has.
_TABLE: Final[dict[type[Event], tuple[NodeState | None, ...]]] = {
    #               JOINING SYNCING STANDBY ACTIVE DRAINING LEFT PAUSED
    LearnerFound: (_S, _S, _B, _A, _D, _L, _P),
    LearnerLost: (_J, _J, _J, _J, _D, _L, _P),
    PolicyApplied: (_J, _B, _B, _A, _D, _L, _P),
    EngineDied: (_J, _S, _S, _S, _D, _L, _P),
    Activate: (_BUG, _S, _A, _A, _D, _L, _P),
    Deactivate: (_BUG, _S, _B, _B, _D, _L, _P),
    OwnerPaused: (_P, _P, _P, _P, _D, _L, _P),
    OwnerResumed: (_J, _S, _B, _A, _D, _L, _S),
    StopRequested: (_D, _D, _D, _D, _D, _L, _D),
    Drained: (_BUG, _BUG, _BUG, _BUG, _L, _L, _BUG),
    RunFinished: (_BUG, _L, _L, _L, _L, _L, _L),
}

NEXT_STATE: Final[dict[tuple[NodeState, type[Event]], NodeState | None]] = {
    (state, event): following
    for event, column in _TABLE.items()
    for state, following in zip((_J, _S, _B, _A, _D, _L, _P), column, strict=True)
}
"""The state after each event; None where the event can't happen."""


class NodeLifecycle:
    """The state of one node, from its start to its end."""

    def __init__(self) -> None:
        self._state = NodeState.JOINING
        self._applied_version: PolicyVersion | None = None
        self._has_learner = False

    @property
    def state(self) -> NodeState:
        """Where the node is in its life."""
        return self._state

    @property
    def applied_version(self) -> PolicyVersion | None:
        """What its engine samples with; None if it has no policy."""
        return self._applied_version

    def handle(self, event: Event) -> list[Effect]:
        """Take in what happened, and return what to do.

        Raises:
            LocalProtocolError: it can't happen in this state; nothing has changed.
        """
        before = self._state
        after = NEXT_STATE[before, type(event)]
        if after is None:
            raise LocalProtocolError(f"{type(event).__name__} in state {before}")
        applied = self._applied_after(event)
        if isinstance(event, LearnerFound | LearnerLost):
            self._has_learner = isinstance(event, LearnerFound)
        if isinstance(event, OwnerResumed) and after is NodeState.SYNCING and not self._has_learner:
            after = NodeState.JOINING
        if after is NodeState.SYNCING and applied is not None:
            after = NodeState.STANDBY
        self._state, self._applied_version = after, applied
        if before is NodeState.LEFT:
            return []
        effects: list[Effect] = []
        if isinstance(event, EngineDied):
            effects.append(HandBackWork(event.why))
        if before is not after:
            effects += _effects_of(before, after, event)
        return effects

    def _applied_after(self, event: Event) -> PolicyVersion | None:
        match event:
            case EngineDied():
                return None
            case PolicyApplied(version):
                if self._applied_version is not None and version < self._applied_version:
                    raise LocalProtocolError(
                        f"version {version} applied after {self._applied_version}"
                    )
                return version
            case _:
                return self._applied_version


def _effects_of(before: NodeState, after: NodeState, event: Event) -> list[Effect]:
    match after:
        case NodeState.LEFT:
            return [Announce(after), Leave(isinstance(event, RunFinished))]
        case NodeState.DRAINING:
            return [Announce(after), DrainWork()]
        case NodeState.PAUSED:
            return [PauseWork(), Announce(after)]
        case NodeState.ACTIVE:
            return [Announce(after), TakeWork()]
        case _ if before is NodeState.ACTIVE:
            return [StopTakingWork(), Announce(after)]
        case _:
            return [Announce(after)]
