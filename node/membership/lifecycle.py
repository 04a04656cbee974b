"""Drives the life of the node: events in, in the order they happened; effects performed."""

from collections import deque
from typing import Protocol, assert_never

import structlog
import trio

from protocols.heartbeat import NodeState
from protocols.ids import PolicyVersion
from protocols.lifecycle import (
    Announce,
    DrainWork,
    Effect,
    Event,
    HandBackWork,
    Leave,
    NodeLifecycle,
    PauseWork,
    StopTakingWork,
    TakeWork,
)

log = structlog.get_logger()


class Performer(Protocol):
    """What the effects act on."""

    def announce(self) -> None:
        """Tell the learner of the new state now."""
        ...

    def take_work(self) -> None:
        """Ask for leases from now on."""
        ...

    def stop_taking_work(self) -> None:
        """Ask for no more."""
        ...

    def hand_back(self, why: str) -> None:
        """Give back what is not sampled."""
        ...

    def pause(self) -> None:
        """Finish what the engine has begun, give back all else."""
        ...

    def drain(self) -> None:
        """Finish what is begun, give back the rest, then say so."""
        ...

    def engine_changed(self) -> None:
        """Look again at what the engine can do."""
        ...


class LifecycleRunner:
    """One node's life. Events may come before there is anything to act on, or from an effect."""

    def __init__(self) -> None:
        self._core = NodeLifecycle()
        self._performer: Performer | None = None
        self._happened: deque[Event] = deque()
        self._is_handling = False
        self._is_run_finished = False
        self._left = trio.Event()

    @property
    def state(self) -> NodeState:
        """Where the node is in its life."""
        return self._core.state

    @property
    def applied_version(self) -> PolicyVersion | None:
        """What its engine samples with."""
        return self._core.applied_version

    @property
    def is_run_finished(self) -> bool:
        """Whether it ended because the run did."""
        return self._is_run_finished

    async def wait_left(self) -> None:
        """Return when the node is to end."""
        await self._left.wait()

    def attach(self, performer: Performer) -> None:
        """Perform effects on ``performer`` from now on, those of earlier events first."""
        self._performer = performer
        self._handle_all()

    def happened(self, event: Event) -> None:
        """Take in an event."""
        self._happened.append(event)
        self._handle_all()

    def engine_changed(self) -> None:
        """Have the parts look at the engine again; those not attached yet will see for themselves.

        That is no event of the lifecycle: the node's state stays as it is.
        """
        if self._performer is not None:
            self._performer.engine_changed()
            self._performer.announce()

    def _handle_all(self) -> None:
        performer = self._performer
        # An effect may make something happen: that comes after the other effects.
        if performer is None or self._is_handling:
            return
        self._is_handling = True
        try:
            while self._happened:
                before = self._core.state
                effects = self._core.handle(self._happened.popleft())
                if self._core.state is not before:
                    log.info("node.state", state=self._core.state.value, before=before.value)
                for effect in effects:
                    self._perform(effect, performer)
        finally:
            self._is_handling = False

    def _perform(self, effect: Effect, performer: Performer) -> None:
        match effect:
            case Announce():
                performer.announce()
            case TakeWork():
                performer.take_work()
            case StopTakingWork():
                performer.stop_taking_work()
            case HandBackWork(why):
                performer.hand_back(why)
            case PauseWork():
                performer.pause()
            case DrainWork():
                performer.drain()
            case Leave(is_run_finished):
                self._is_run_finished = is_run_finished
                self._left.set()
            case _:
                assert_never(effect)
