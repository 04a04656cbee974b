"""The simulated learner's desk: what nodes say reaches the real dispatcher here.

A question without work to give waits until there is some, as at the live learner.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log
from typing import Final

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.group_table import SampleStatus
from echo2swarm.scheduling.leases.groups import AcceptedRollout, DropReason
from echo2swarm.scheduling.leases.lease_book import LeaseEnded, LeaseRecord, LeaseState, SampleKey
from echo2swarm.scheduling.leases.lease_rules import NoWork, WorkRequest
from echo2swarm.scheduling.leases.open_group import Dropped
from echo2swarm.scheduling.staleness import Freshness, judge_staleness
from echo2swarm.simulate.accounts import Accounts
from echo2swarm.simulate.clock import EventClock
from echo2swarm.simulate.measures import Measures
from echo2swarm.simulate.members import SimulatedMember
from echo2swarm.simulate.node import SimNode, SimulatedSubmission
from protocols.ids import GroupId, PeerId, PolicyVersion
from protocols.reasons import Reason

_NOT_WANTED: Final = {
    SampleStatus.TAKEN: Reason.DUPLICATE,
    SampleStatus.ANSWERED: Reason.ALREADY_ANSWERED,
    SampleStatus.STALE: Reason.STALE,
    SampleStatus.CLOSED: Reason.LEASE_EXPIRED,
}

MAX_LOOKED_AT: Final = 16
"""Waiting questions that fail one after the other, before the others have to wait."""
_WOKEN_AT_ONCE: Final = 64
_FINEST: Final = 0.02
_GOLDEN: Final = 0.6180339887498949
"""Lengths of answers are told apart as finely as this, so that few have to be kept."""


@dataclass(frozen=True, slots=True)
class SimPrompt:
    """A prompt, as the dispatcher sees it."""

    index: int
    tokens: bytes


@dataclass(slots=True)
class _Question:
    node: SimNode
    session: int
    ask_round: int
    version: int
    is_over: bool = False
    """Answered, or void."""


class SimulatedLeaseDesk:
    """Leases and verdicts.

    Args:
        engine: the clock.
        dispatcher: the real one.
        members: by peer.
        accounts: what is counted.
        measures: what is measured.
        prompt_tokens: length of every prompt.
        equal_share: share of the prompts whose answers are all worth the same.
        judge_luck: whether the next rollout of this node is refused by a check of content.
        on_ready: called when a batch might be complete.
        rng: for the order in which nodes that wait are answered.
    """

    def __init__(
        self,
        engine: EventClock,
        dispatcher: Dispatcher,
        *,
        members: dict[PeerId, SimulatedMember],
        accounts: Accounts,
        measures: Measures,
        prompt_tokens: int,
        equal_share: float,
        judge_luck: Callable[[SimNode], bool],
        on_ready: Callable[[], None],
        rng: random.Random,
    ) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._members = members
        self._accounts = accounts
        self._measures = measures
        self._judge_luck = judge_luck
        self._on_ready = on_ready
        self._rng = rng
        self._equal_share = equal_share
        self._prompt = b"\0" * (4 * prompt_tokens)
        self._num_prompts = 0
        self._waiting: deque[_Question] = deque()
        self._of_node: dict[PeerId, list[_Question]] = {}
        self._has_released = False
        self._packed: dict[int, bytes] = {}

    @property
    def num_waiting(self) -> int:
        """Questions that wait for work."""
        return sum(not (question.is_over or self._is_void(question)) for question in self._waiting)

    # Told by nodes.

    def asked(self, node: SimNode, version: int, ask_round: int) -> None:
        """Give work, or let the question wait."""
        question = _Question(node, node.session, ask_round, version)
        if not self._try(question):
            self._waiting.append(question)
            self._of_node.setdefault(node.peer, []).append(question)

    def applied(self, node: SimNode) -> None:
        """Look again at what was asked: what a node asked before it had this version counts now."""
        if len(self._waiting) <= _WOKEN_AT_ONCE:
            self.serve_waiting()
            return
        waiting = self._of_node.pop(node.peer, None)
        if waiting and (left := [q for q in waiting if not (q.is_over or self._try(q))]):
            self._of_node[node.peer] = left

    def given_back(self, node: SimNode, lease_id: str) -> None:
        """Take back a lease."""
        lease = self._dispatcher.leases.get(lease_id)
        if lease is not None and lease.state is LeaseState.ACTIVE and lease.peer == node.peer:
            self.end(lease, LeaseState.RETURNED)
            self.serve_waiting()

    def submitted(self, node: SimNode, work: SimulatedSubmission) -> None:
        """Judge results."""
        dispatcher, now_s = self._dispatcher, self._engine.now_s
        lease = dispatcher.leases.get(work.part.lease_id)
        num = work.part.num_completions
        if lease is None:
            self._refuse(node, Reason.UNKNOWN_LEASE, num)
        else:
            self._judge(node, lease, work, now_s)
        self._engine.after(node.kind.rtt_s / 2, node.judged, node.session, work.part.lease_id, num)
        if self._has_released:
            self.serve_waiting()
        self._on_ready()

    # Done by the learner.

    def end(self, lease: LeaseRecord, state: LeaseState) -> None:
        """End an active lease early; what it lacks is leased to others."""
        ended, drops = self._dispatcher.end_lease(lease, state, self._engine.now_s)
        self._note_end(ended)
        self.note_drops(drops)
        self._accounts.num_released += ended.num_unfinished
        self._has_released = True

    def end_all_of(self, peer: PeerId, state: LeaseState = LeaseState.NODE_LOST) -> None:
        """End the leases of a node that is gone."""
        for lease in self._dispatcher.leases.of_peer(peer):
            self.end(lease, state)

    def end_overdue(self) -> None:
        """End the leases whose time is up, or whose deadline step has passed."""
        for lease, state in self._dispatcher.leases.overdue(
            now_s=self._engine.now_s, next_step=self._dispatcher.next_step
        ):
            if lease.state is LeaseState.ACTIVE:
                self.end(lease, state)

    def note_drops(self, drops: list[Dropped]) -> None:
        """Count groups that were given up."""
        for drop in drops:
            self._accounts.dropped(drop.group_id, drop.reason)

    def drop_all(self, reason: DropReason) -> None:
        """Give up everything that was leased and not trained on."""
        for lease in self._dispatcher.leases.active:
            self.end(lease, LeaseState.RETURNED)
        ready = [group.group_id for group in self._dispatcher.ready]
        groups = [*self._dispatcher.open_groups, *ready]
        self.note_drops([self._dispatcher.drop(group, reason) for group in groups])

    def serve_waiting(self) -> None:
        """Look again at the questions that wait, while there is work.

        All of them are woken at once, and reach the dispatcher in any order. Where thousands
        wait, it is the turn of those that waited for longest.
        """
        failed: list[_Question] = []
        now_s = self._engine.now_s
        is_late = (self._dispatcher.next_late_s() or inf) <= now_s
        woken: list[_Question] = []
        while len(failed) < MAX_LOOKED_AT and (self._has_released or is_late or self._has_room):
            if not woken:
                woken = self._wake()
            if not woken:
                break
            question = woken.pop()
            if not self._try(question):
                failed.append(question)
        self._waiting.extendleft(woken)
        if len(failed) < MAX_LOOKED_AT:
            self._waiting.extendleft(failed)
        else:
            self._waiting.extend(failed)  # the others are next
        self._has_released = False

    def _wake(self) -> list[_Question]:
        """Return some that wait, in any order."""
        woken: list[_Question] = []
        while self._waiting and len(woken) < _WOKEN_AT_ONCE:
            question = self._waiting.popleft()
            if not question.is_over:
                woken.append(question)
        self._rng.shuffle(woken)
        return woken

    # Inside.

    @property
    def _has_room(self) -> bool:
        return self._dispatcher.has_room

    def _try(self, question: _Question) -> bool:
        """Return whether a question needs to wait no longer."""
        question.is_over = self._is_void(question) or self._give(question)
        return question.is_over

    def _is_void(self, question: _Question) -> bool:
        node = question.node
        return (
            question.session != node.session
            or question.ask_round != node.ask_round
            or not self._members[node.peer].is_present
        )

    def _give(self, question: _Question) -> bool:
        """Lease work to who asked, if there is any."""
        node = question.node
        member = self._members[node.peer]
        if not member.is_active:
            return False
        self._draw_prompts()
        now_s = self._engine.now_s
        reply = self._dispatcher.grant(
            WorkRequest(
                peer=node.peer,
                session_id=str(question.session),
                applied_version=PolicyVersion(max(question.version, member.applied_version or 0)),
                max_completions=node.kind.concurrency,
                broadcast_s=member.broadcasts.slow_s,
                usual_broadcast_s=member.broadcasts.usual_s,
            ),
            now_s,
        )
        if isinstance(reply, NoWork):
            return False
        for group in reply.groups:
            self._accounts.leased(group.group_id)
        self._accounts.of(node.peer).num_issued += reply.num_completions
        member.num_leases += 1
        member.work.set_working(True, now_s)
        self._engine.after(
            node.kind.rtt_s / 2,
            *(node.granted, question.session, question.ask_round, question.version, reply),
        )
        return True

    def _draw_prompts(self) -> None:
        wanted = min(64, self._dispatcher.num_prompts_wanted)
        if wanted > 0:
            first = self._num_prompts
            self._num_prompts += wanted
            self._dispatcher.add_prompts(
                SimPrompt(index, self._prompt) for index in range(first, self._num_prompts)
            )

    def _judge(
        self, node: SimNode, lease: LeaseRecord, work: SimulatedSubmission, now_s: float
    ) -> None:
        dispatcher = self._dispatcher
        is_stale = (
            judge_staleness(
                version=work.version,
                step=dispatcher.next_step,
                max_staleness=dispatcher.rules.max_staleness,
            )
            is Freshness.STALE
        )
        num_accepted, num_tokens = 0, 0.0
        keys = ((GroupId(g.group_id), s.index) for g in work.part.groups for s in g.samples)
        for key, tokens in zip(keys, work.num_tokens, strict=True):
            status = dispatcher.status_for(lease, key)
            drop: Dropped | None = None
            if status is not SampleStatus.OPEN:
                self._refuse(node, _NOT_WANTED[status])
                ended = dispatcher.settle(lease, key, now_s)
            elif is_stale or self._judge_luck(node):
                self._refuse(node, Reason.STALE if is_stale else Reason.WRONG_SHAPE)
                drop, ended = dispatcher.refuse(lease, key, now_s)
                self._has_released = True
            else:
                dispatcher.begin_judging(lease, key)
                rollout = self._rollout(node.peer, work.version, tokens, self._reward(key))
                _, ended, drop = dispatcher.accept(lease, key, rollout, now_s)
                self._has_released |= drop is not None
                num_accepted += 1
                num_tokens += tokens
            if drop is not None:
                self.note_drops([drop])
            if ended is not None:
                self._note_end(ended)
        if num_accepted:
            member = self._members[node.peer]
            member.num_accepted += num_accepted
            member.work.add(num_accepted, now_s)
            self._measures.accepted.add(num_accepted, now_s)
            count = self._accounts.of(node.peer)
            count.num_accepted += num_accepted
            count.num_tokens += num_tokens

    def _reward(self, key: SampleKey) -> float:
        """Return what a sample is worth; of an equal share of the prompts, all are worth 0."""
        group_id, index = key
        # A share of any run of prompts, by the golden ratio: no chance is needed.
        is_equal = (group_id * _GOLDEN) % 1.0 < self._equal_share
        return 0.0 if is_equal else float(index % 2)

    def _rollout(self, peer: PeerId, version: int, tokens: float, reward: float) -> AcceptedRollout:
        """Return a result. Nobody reads its tokens, but their number counts."""
        size = max(1, round(exp(round(log(tokens) / _FINEST) * _FINEST)))
        packed = self._packed.get(size)
        if packed is None:
            packed = self._packed[size] = b"\0" * (4 * size)
        return AcceptedRollout(
            tokens=packed,
            logprobs=b"",
            version=PolicyVersion(version),
            reward=reward,
            is_truncated=False,
            peer=peer,
        )

    def _refuse(self, node: SimNode, reason: Reason, count: int = 1) -> None:
        self._accounts.refusals[reason] += count
        if reason is Reason.ALREADY_ANSWERED:
            return  # it was late, and no fault is found with it
        self._accounts.of(node.peer).num_refused += count
        self._members[node.peer].num_refused += count

    def _note_end(self, ended: LeaseEnded) -> None:
        self._accounts.lease_ends[ended.state] += 1
        now_s = self._engine.now_s
        member = self._members[ended.peer]
        member.num_leases -= 1
        member.work.set_working(member.num_leases > 0, now_s)
        if ended.state is LeaseState.DONE:
            self._measures.rollout_s.add(ended.took_s, now_s)
            self._accounts.leases_s.append(ended.took_s)
