"""Ends the work of a node that leaves: what is begun is finished and submitted, within limits."""

from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from echo2swarm.scheduling.workload import Ending, Workload
from echo2swarm.system.change_event import ChangeEvent
from node.rollouts.lease_requests import LeaseRequester

log = structlog.get_logger()

LEARNER_SILENT_S: Final = 6.0
"""A learner that does not answer for so long will not take what is drained."""
DRAIN_S: Final = 30.0
"""Work begun may take this long to finish when the node is asked to stop."""
FLUSH_S: Final = 10.0
"""And what was finished may take this long to be submitted."""


class Drain:
    """Waits until nothing is in hand any more, once it has begun.

    Args:
        work: what is in hand.
        changes: notified when that has changed.
        requester: hands leases back.
        on_ended: told which leases ended.
        on_drained: called when nothing is in hand any more.
        is_learner_silent: whether the learner did not answer the last call.
    """

    def __init__(
        self,
        work: Workload,
        changes: ChangeEvent,
        requester: LeaseRequester,
        *,
        on_ended: Callable[[Sequence[Ending]], None],
        on_drained: Callable[[], None],
        is_learner_silent: Callable[[], bool],
    ) -> None:
        self._work = work
        self._changes = changes
        self._requester = requester
        self._on_ended = on_ended
        self._on_drained = on_drained
        self._is_learner_silent = is_learner_silent
        self._wanted = trio.Event()

    def begin(self) -> None:
        """Have :meth:`run` begin."""
        self._wanted.set()

    async def run(self) -> None:
        """Drain once that has begun."""
        await self._wanted.wait()
        log.info("work.draining", num_rollouts=self._work.num_rollouts, at_most_s=DRAIN_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up_on_silent_learner, nursery.cancel_scope)
            await self._drain()
            nursery.cancel_scope.cancel()
        self._on_drained()

    async def _give_up_on_silent_learner(self, scope: trio.CancelScope) -> None:
        while True:
            await trio.sleep(LEARNER_SILENT_S)
            if self._is_learner_silent():
                log.warning(
                    "work.dropped",
                    num_rollouts=self._work.num_rollouts,
                    why="the learner does not answer; it will lease this work to others",
                )
                scope.cancel()

    async def _drain(self) -> None:
        with trio.move_on_after(DRAIN_S):
            await self._until_nothing_is_in_hand()
        self._on_ended(self._work.hand_back("this node is leaving, and could not finish in time"))
        with trio.move_on_after(FLUSH_S):
            await self._until_nothing_is_in_hand()
            await self._requester.until_all_given_back()

    async def _until_nothing_is_in_hand(self) -> None:
        while self._work.num_leases:
            await self._changes.next_change.wait()
