"""Answers nodes that ask for work or hand it back; protocol ``/echo2/lease``.

A request without work to give is held for as long as the node is willing to wait: it is
answered the moment there is some, so no node polls.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from echo2swarm.scheduling.leases.lease_book import LeaseState
from echo2swarm.scheduling.leases.lease_rules import NoWork, WorkRequest
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.text.format import printable
from learner.rollouts.work_kind import WorkKind, find_lease
from learner.state.node import Node
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from protocols.codec import decode, encode
from protocols.heartbeat import Directive
from protocols.ids import PeerId, PolicyVersion, short
from protocols.leases import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Lease,
    LeaseCall,
    LeaseReply,
    LeaseRequest,
    LeaseReturn,
)
from protocols.reasons import Reason

RETRY_S: Final = 1.0
"""After which a node without work may ask again."""

log = structlog.get_logger()


class LeaseService:
    """Answers calls, many at once.

    Args:
        kinds: of work, in the order in which a node is offered them.
        run_id: which run.
        nodes: who takes part.
        progress: of the run.
        changes: notified when there may be work for somebody.
        wait_of: returns why a node has to wait for its results to be scored; None if it has not.
    """

    def __init__(
        self,
        kinds: Sequence[WorkKind],
        *,
        run_id: str,
        nodes: NodeTable,
        progress: LearnerProgress,
        changes: ChangeEvent,
        wait_of: Callable[[PeerId], str | None],
    ) -> None:
        self._wait_of = wait_of
        self._kinds = kinds
        self._run_id = run_id
        self._nodes = nodes
        self._progress = progress
        self._changes = changes

    async def answer_old(self, peer: PeerId, data: bytes) -> bytes:
        """Return the reply to a call of a node that can't keep a version."""
        return await self.answer(peer, data, can_keep_version=False)

    async def answer(self, peer: PeerId, data: bytes, *, can_keep_version: bool = True) -> bytes:
        """Return the reply to one call."""
        call: LeaseRequest | LeaseReturn = decode(data, LeaseCall, max_bytes=MAX_REQUEST_BYTES)
        if call.run_id != self._run_id:
            reply = self._refused(Reason.WRONG_RUN, f"this is run {self._run_id}")
        elif not self._nodes.is_session(peer, call.session_id):
            reply = self._refused(
                Reason.NOT_A_MEMBER, "no heartbeat of this session is known; send one first"
            )
        elif isinstance(call, LeaseReturn):
            reply = await self._take_back(peer, call)
        else:
            reply = await self._give(peer, call, can_keep_version=can_keep_version)
        return encode(reply, max_bytes=MAX_REPLY_BYTES)

    async def _give(
        self, peer: PeerId, request: LeaseRequest, *, can_keep_version: bool
    ) -> LeaseReply:
        deadline_s = trio.current_time() + request.wait_s
        while True:
            change = self._changes.next_change
            result = await self._try(peer, request, can_keep_version=can_keep_version)
            if isinstance(result, Lease):
                return self._reply(lease=result)
            with trio.move_on_at(deadline_s) as scope:
                await change.wait()
            if scope.cancelled_caught:
                return self._reply(why=result.why)

    async def _try(
        self, peer: PeerId, request: LeaseRequest, *, can_keep_version: bool
    ) -> Lease | NoWork:
        node = self._nodes.get(peer)
        if node is None or not self._nodes.is_session(peer, request.session_id):
            return NoWork("the session is over")
        if why := self._why_not(node):
            return NoWork(why)
        ask = WorkRequest(
            peer=peer,
            session_id=request.session_id,
            # It may have applied a newer one while its request was held here.
            applied_version=PolicyVersion(max(request.applied_version, node.applied_version or 0)),
            max_completions=request.max_completions,
            broadcast_s=node.slow_broadcast_s,
            usual_broadcast_s=node.usual_broadcast_s,
        )
        for kind in self._kinds:
            reply = await kind.grant(ask, can_keep_version=can_keep_version)
            if reply is not None:
                return reply
        return NoWork("there is no work now")

    def _why_not(self, node: Node) -> str:
        """Return why a node gets no work at all; empty if it may get some."""
        if self._progress.is_finished:
            return "the run is finished"
        if node.directive is not Directive.ACTIVE:
            return node.why
        return self._wait_of(node.peer) or ""

    async def _take_back(self, peer: PeerId, call: LeaseReturn) -> LeaseReply:
        found = find_lease(self._kinds, call.lease_id)
        if found is None:
            return self._refused(Reason.UNKNOWN_LEASE, f"no lease {call.lease_id!r}")
        kind, lease = found
        if lease.peer != peer:
            return self._refused(Reason.NOT_YOUR_LEASE, "this lease was granted to another node")
        if lease.state is LeaseState.ACTIVE:
            log.info("lease.returned", lease=lease.lease_id, peer=short(peer), why=call.why)
            await kind.give_back(lease)
        return self._reply(why="taken back")

    def _refused(self, reason: Reason, why: str) -> LeaseReply:
        return self._reply(refusal=reason, why=why)

    def _reply(
        self, *, lease: Lease | None = None, refusal: Reason | None = None, why: str = ""
    ) -> LeaseReply:
        return LeaseReply(
            lease=lease,
            refusal=refusal,
            why=printable(why),
            learner_step=self._progress.step,
            retry_after_s=0.0 if lease else RETRY_S,
        )
