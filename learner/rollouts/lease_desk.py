"""Performs what the dispatcher decides: in the ledger, in the node table, in the log.

Whatever changes leases or groups of training goes through here, so that nothing is decided
without being recorded. Others may look at :attr:`LeaseDesk.dispatcher`.
"""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog
import trio

from echo2swarm.scheduling.leases.batcher import TrainingBatch
from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.group_table import SampleStatus
from echo2swarm.scheduling.leases.groups import AcceptedRollout, DropReason
from echo2swarm.scheduling.leases.lease_book import (
    LeaseEnded,
    LeaseRecord,
    LeaseState,
    SampleKey,
)
from echo2swarm.scheduling.leases.lease_rules import NoWork, WorkRequest
from echo2swarm.scheduling.leases.open_group import Dropped
from echo2swarm.system.change_event import ChangeEvent
from learner.ledger.ledger import Ledger
from learner.ledger.resume import LeftOver
from learner.rollouts.work_kind import SubmittedRollout
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from protocols.ids import PeerId, short
from protocols.leases import Lease
from protocols.reasons import Reason

log = structlog.get_logger()

_LONGEST_NAP_S: Final = 1.0
_SHORTEST_NAP_S: Final = 0.05
_WASTE: Final = frozenset({DropReason.STALE, DropReason.GAVE_UP})
_WANTED: Final = frozenset({DropReason.RUN_ENDED, DropReason.EQUAL})


def tell_ended(end: LeaseEnded) -> None:
    """Log how a lease ended."""
    tell = log.info if end.state is LeaseState.DONE else log.warning
    tell(
        "lease.ended",
        lease=end.lease_id,
        peer=short(end.peer),
        outcome=end.state.value,
        num_unfinished=end.num_unfinished,
        took_s=round(end.took_s, 3),
    )


class NextBatch(NamedTuple):
    """A batch, and what became of the groups without signal on the way to it."""

    batch: TrainingBatch
    num_replaced: int
    """Groups that others took the place of."""
    num_kept: int
    """Groups that are in the batch for lack of others."""


class LeaseDesk:
    """Grants and ends leases, takes results, forms batches, and drops groups."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        nodes: NodeTable,
        ledger: Ledger,
        progress: LearnerProgress,
        changes: ChangeEvent,
    ) -> None:
        self.dispatcher = dispatcher
        self._nodes = nodes
        self._ledger = ledger
        self._progress = progress
        self._changes = changes

    async def grant(self, ask: WorkRequest) -> Lease | NoWork:
        """Lease work to a node, on record."""
        reply = self.dispatcher.grant(ask, trio.current_time())
        if isinstance(reply, NoWork):
            return reply
        record = self.dispatcher.leases.get(reply.lease_id)
        assert record is not None  # noqa: S101 - granted a line above
        self._note_work(ask.peer)
        try:
            await self._ledger.granted(reply, record, now_unix_s=time.time())
        except BaseException:
            # Nobody will ever hear of this lease.
            if record.state is LeaseState.ACTIVE:
                self.dispatcher.end_lease(record, LeaseState.RETURNED, trio.current_time())
            raise
        log.info(
            "lease.granted",
            lease=reply.lease_id,
            peer=short(ask.peer),
            version=ask.applied_version,
            num_prompts=len(reply.groups),
            num_completions=reply.num_completions,
        )
        return reply

    async def restore(self, left_over: LeftOver) -> None:
        """Take up the leases and groups that an earlier process left."""
        for version in left_over.published:
            self.dispatcher.version_published(version, trio.current_time())
        for lease in left_over.leases:
            self.dispatcher.leases.remember(lease)
        size = self.dispatcher.rules.group_size
        dropped = []
        for group in left_over.groups:
            rollouts = [group.rollouts.get(index) for index in range(size)]
            dropped.append(self.dispatcher.restore(group.group_id, group.prompt_tokens, rollouts))
        await self._record_drops([each for each in dropped if each is not None])

    def reserve(self, lease: LeaseRecord, key: SampleKey) -> None:
        """Take no other result of an open sample until there is a verdict on the one at hand."""
        self.dispatcher.begin_judging(lease, key)

    def cancel(self, key: SampleKey) -> None:
        """Give up a reservation: there will be no verdict."""
        self.dispatcher.cancel_judging(key)

    async def conclude(
        self, lease: LeaseRecord, results: Sequence[SubmittedRollout[AcceptedRollout]]
    ) -> None:
        """Let verdicts take effect; all of it before the first checkpoint."""
        dispatcher, now_s = self.dispatcher, trio.current_time()
        ends: list[LeaseEnded | None] = []
        drops: list[Dropped | None] = []
        for result in results:
            drop, key = None, result.key
            if result.accepted is not None:
                _, end, drop = dispatcher.accept(lease, key, result.accepted, now_s)
            elif key not in lease.samples:
                continue
            elif result.is_reserved or dispatcher.status_of(key) is SampleStatus.OPEN:
                reason = result.refusal.reason if result.refusal else None
                is_unscorable = reason is Reason.UNSCORABLE
                drop, end = dispatcher.refuse(lease, key, now_s, is_unscorable=is_unscorable)
            else:
                end = dispatcher.settle(lease, key, now_s)
            ends.append(end)
            drops.append(drop)
        self._changes.notify()
        await self._record_ends([end for end in ends if end is not None])
        await self._record_drops([drop for drop in drops if drop is not None])

    async def form_batch(self, step: int) -> NextBatch | None:
        """Take the groups of update ``step``, if there are enough; drops those that are stale.

        From then on, what is leased is for the update after it.
        """
        dispatcher, now_s = self.dispatcher, trio.current_time()
        formed = dispatcher.form(now_s)
        dropped = [dispatcher.drop(group.group_id, DropReason.STALE) for group in formed.stale]
        equal = dispatcher.equal_groups
        num_replaced, num_kept = equal.num_replaced, equal.num_kept
        if formed.batch is not None:
            dispatcher.take(formed.batch.groups)
            dropped += dispatcher.advance(step + 1, now_s)
        await self._record_drops(dropped)
        if formed.batch is None:
            return None
        self._changes.notify()
        return NextBatch(formed.batch, num_replaced, num_kept)

    async def end(self, leases: Sequence[tuple[LeaseRecord, LeaseState]]) -> None:
        """End leases before their time; what they lack is leased to others."""
        ends: list[LeaseEnded] = []
        drops: list[Dropped] = []
        for lease, state in leases:
            if lease.state is LeaseState.ACTIVE:
                end, dropped = self.dispatcher.end_lease(lease, state, trio.current_time())
                ends.append(end)
                drops += dropped
        await self._record_ends(ends)
        await self._record_drops(drops)

    async def end_sessions(self, peer: PeerId, *, except_session: str | None) -> None:
        """End the leases of a node that is gone, or that came back as another process."""
        await self.end(
            [
                (lease, LeaseState.NODE_LOST)
                for lease in self.dispatcher.leases.of_peer(peer)
                if lease.session_id != except_session
            ]
        )

    async def node_is_back(self, peer: PeerId, session_id: str) -> None:
        """Give a node its leases back that seemed to be gone, and was only silent.

        Else it and others would do the same work, and one of them in vain.
        """
        revived = self.dispatcher.node_is_back(peer, session_id)
        if revived:
            self._note_work(peer)
            log.info("leases.revived", peer=short(peer), count=len(revived))
            await self._ledger.revived([lease.lease_id for lease in revived])

    async def drop_all(self, reason: DropReason) -> None:
        """Give up every group that was leased and not trained on, and all leases."""
        await self.end([(lease, LeaseState.RETURNED) for lease in self.dispatcher.leases.active])
        ready = [group.group_id for group in self.dispatcher.ready]
        await self._record_drops(
            [self.dispatcher.drop(g, reason) for g in [*self.dispatcher.open_groups, *ready]]
        )

    async def _record_ends(self, ends: Sequence[LeaseEnded]) -> None:
        """Record the ends of leases, and wake those that wait for what is left of them."""
        if not ends:
            return
        for end in ends:
            self._note_work(end.peer)
            if end.state is LeaseState.DONE:
                self._nodes.lease_took(end.peer, end.took_s)
                self._progress.rollout_s.add(end.took_s, trio.current_time())
            tell_ended(end)
        self._changes.notify()
        await self._ledger.ended(ends, now_unix_s=time.time())

    async def _record_drops(self, drops: Sequence[Dropped]) -> None:
        """Record groups that will never be trained on."""
        self._progress.used_share = self.dispatcher.equal_groups.used_share
        if not drops:
            return
        for reason in sorted({drop.reason for drop in drops}):
            groups = [drop.group_id for drop in drops if drop.reason is reason]
            tell = log.info if reason in _WANTED else log.warning
            tell("groups.dropped", reason=reason.value, count=len(groups), groups=groups[:20])
            if reason in _WASTE:
                num_lost = len(groups) * self.dispatcher.rules.group_size
                self._progress.dropped.add(num_lost, trio.current_time())
        self._changes.notify()
        await self._ledger.dropped(drops, now_unix_s=time.time())

    async def watch(self) -> None:
        """End leases as their time runs out, or the learner passes their deadline step."""
        while True:
            change = self._changes.next_change
            now_s = trio.current_time()
            await self.end(
                self.dispatcher.leases.overdue(now_s=now_s, next_step=self.dispatcher.next_step)
            )
            late_s = self.dispatcher.next_late_s()
            if late_s is not None and late_s <= now_s:
                late_s = None  # Its waiters were notified, and no node has asked for work since.
            times_s = (self.dispatcher.leases.next_expiry_s(), late_s, now_s + _LONGEST_NAP_S)
            wake_s = min(time_s for time_s in times_s if time_s is not None)
            # A lease granted meanwhile lasts longer than the nap; an ended one notifies.
            with trio.move_on_at(max(now_s + _SHORTEST_NAP_S, wake_s)) as nap:
                await change.wait()
            if nap.cancelled_caught:
                # As time passes leases become late, and what was too slow is better than nothing.
                self._changes.notify()

    def _note_work(self, peer: PeerId) -> None:
        has_lease = bool(self.dispatcher.leases.of_peer(peer))
        self._nodes.working(peer, has_lease=has_lease, now_s=trio.current_time())
