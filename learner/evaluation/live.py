"""Evaluations while a run goes on, made by its own nodes.

One at a time. When a version is due (:mod:`learner.evaluation.schedule`), the first node that
asks for work with it, or with a newer one, decides the version that is evaluated; from then on
only nodes that sample with that version get leases of it, and never more than
``eval.max_share`` of those active. So training waits for an evaluation in a swarm of one node
only. Why it is done so: ``docs/adr/0015-evaluation-on-the-swarm.md``.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.lease_book import LeaseEnded, LeaseRecord, LeaseState
from echo2swarm.scheduling.leases.lease_rules import WorkRequest
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.jsonl import JsonLines
from learner.config import EvalConfig
from learner.evaluation.evaluators import Evaluators
from learner.evaluation.metrics import EvaluationMetrics
from learner.evaluation.opening import open_evaluation
from learner.evaluation.point import point_of
from learner.evaluation.round import EvaluationRound, HeldOutRequest, RoundPlan
from learner.evaluation.schedule import EvaluationSchedule
from learner.ledger.evaluations import Outcome
from learner.ledger.ledger import Ledger
from learner.rollouts.lease_desk import tell_ended
from learner.scoring.messages import Prompt
from learner.scoring.ports import HeldOut
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from protocols.ids import LeaseId, PeerId, PolicyVersion, short
from protocols.leases import Lease
from protocols.status import EvaluationStatus

_NAP_S: Final = 1.0

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Now:
    """The evaluation that goes on."""

    round: EvaluationRound
    started_s: float
    is_ready: bool = False
    """Whether it is on record, so that work of it may be leased."""


class LiveEvaluation:
    """The evaluations of one run.

    Args:
        table: the configuration.
        plan: what is made of each prompt.
        schedule: which versions are due.
        held_out: the prompts, and what scores them.
        dispatcher: for the versions published.
        nodes: who takes part.
        ledger: where all of it is recorded.
        progress: told of what was found.
        metrics: gets a line for each evaluation.
        changes: notified when there may be work again.
    """

    def __init__(
        self,
        table: EvalConfig,
        plan: RoundPlan,
        schedule: EvaluationSchedule,
        *,
        held_out: HeldOut,
        dispatcher: Dispatcher,
        nodes: NodeTable,
        ledger: Ledger,
        progress: LearnerProgress,
        metrics: JsonLines,
        changes: ChangeEvent,
    ) -> None:
        self._table = table
        self._plan = plan
        self._schedule = schedule
        self._held_out = held_out
        self._dispatcher = dispatcher
        self._nodes = nodes
        self._ledger = ledger
        self._progress = progress
        self._changes = changes
        self._teller = EvaluationMetrics(metrics)
        self._evaluators = Evaluators(nodes, max_share=table.max_share)
        self._prompts: list[Prompt] = []
        self._now: _Now | None = None
        self._last: EvaluationRound | None = None
        """The one before; results of it may still come."""
        self._evaluated: int | None = None
        """The newest version of which an evaluation was begun, or given up."""
        self._is_last = False
        """Whether training is over."""
        self._is_stopped = False
        self._told_late: set[LeaseId] = set()
        """The leases of which it was told that they are late."""

    # Looking.

    @property
    def prompt_tokens(self) -> frozenset[bytes]:
        """The held-out prompts, packed: never to be trained on."""
        return frozenset(prompt.tokens for prompt in self._prompts)

    @property
    def running(self) -> EvaluationRound | None:
        """The evaluation that goes on."""
        return self._now.round if self._now else None

    @property
    def rounds(self) -> list[EvaluationRound]:
        """The evaluation that goes on, and the one before: results of it may still come."""
        return [found for found in (self.running, self._last) if found is not None]

    def status(self) -> EvaluationStatus:
        """Return what ``swarm status`` shows."""
        running = self.running
        return EvaluationStatus(
            newest=self._teller.newest,
            running_version=None if running is None else running.version,
            num_done=0 if running is None else len(running.answers),
            num_wanted=0 if running is None else running.num_wanted,
        )

    def has_work(self, peer: PeerId) -> bool:
        """Whether a node has a lease of an evaluation in hand."""
        return self.running is not None and self.running.leases.num_of_peer(peer) > 0

    # Nodes.

    async def grant(self, ask: WorkRequest) -> Lease | None:
        """Lease held-out prompts to a node that can keep its version; None if it may train."""
        self._evaluators.add(ask.peer)
        version = ask.applied_version
        if self._now is None and self._may_begin(version):
            await self._begin(version)
        now = self._now
        if now is None or not now.is_ready or now.round.version != version:
            return None
        asker = HeldOutRequest(ask.peer, ask.session_id, ask.max_completions)
        granted = now.round.grant(
            asker,
            max_evaluators=self._max_at_once(),
            now_s=trio.current_time(),
        )
        if granted is None:
            return None
        lease, record = granted
        self._evaluators.are_at_work()
        self._note_work(record.peer)
        try:
            await self._ledger.evaluations.granted(version, record, now_unix_s=time.time())
        except BaseException:
            # Nobody will ever hear of this lease.
            self.end_leases([(record, LeaseState.RETURNED)])
            raise
        log.info(
            "evaluation.leased",
            lease=record.lease_id,
            peer=short(record.peer),
            version=version,
            num_completions=lease.num_completions,
        )
        return lease

    def end_leases(self, leases: Sequence[tuple[LeaseRecord, LeaseState]]) -> None:
        """End active leases; what they lack is leased to others."""
        found = self.running
        ends = [
            found.end_lease(lease, state, trio.current_time())
            for lease, state in leases
            if found is not None
            and lease.state is LeaseState.ACTIVE
            and found.leases.get(lease.lease_id) is lease
        ]
        self._tell_ended(ends)

    def judged(self, ends: Sequence[LeaseEnded]) -> None:
        """Take note of judged results, and of the leases that are over by them."""
        self._tell_ended(ends)
        self._changes.notify()

    # Running.

    async def open(self) -> None:
        """Draw the prompts, and take up what an earlier process left.

        Raises:
            SwarmError: there are none, or none that fit.
        """
        opened = await open_evaluation(
            self._held_out,
            self._plan,
            self._ledger.evaluations,
            num_prompts=self._table.num_prompts,
        )
        self._prompts, self._evaluated = opened.prompts, opened.evaluated
        if opened.newest_figures is not None:
            self._teller.recall(opened.newest_figures)
        if opened.unfinished is not None:
            self._now = _Now(round=opened.unfinished, started_s=trio.current_time(), is_ready=True)

    async def run(self) -> None:
        """End leases whose time is over, and evaluations that are over; until cancelled."""
        while True:
            change = self._changes.next_change
            if self._now is not None:
                self.end_leases(self._over(self._now.round))
                late = self._now.round.late(trio.current_time())
                if late - self._told_late:
                    self._changes.notify()  # who waits for work may be asked in place of them
                self._told_late = late
                why = self._why_over(self._now)
                if why is not None:
                    await self._finish_round(self._now, why)
            with trio.move_on_after(_NAP_S):
                await change.wait()

    def stop(self) -> None:
        """Let :meth:`finish` return at once: a resumed learner goes on with the evaluation."""
        self._is_stopped = True
        self._changes.notify()

    async def finish(self) -> None:
        """Evaluate the last version, now that training is over; returns when that is done."""
        self._is_last = True
        self._changes.notify()
        deadline_s = trio.current_time() + self._table.timeout_s
        while not self._is_stopped and (self._now is not None or self._is_due()):
            change = self._changes.next_change
            if self._now is not None:
                deadline_s = trio.current_time() + self._table.timeout_s
            elif trio.current_time() >= deadline_s or self._are_gone(None):
                log.warning(
                    "evaluation.dropped",
                    version=self._schedule.last_version,
                    why="training is over, and no node that can evaluate asked for work",
                )
                return
            with trio.move_on_after(_NAP_S):
                await change.wait()

    # Inside.

    def _is_due(self) -> bool:
        newest = self._dispatcher.newest_version
        return newest is not None and self._schedule.is_due(newest, evaluated=self._evaluated)

    def _may_begin(self, version: PolicyVersion) -> bool:
        newest = self._dispatcher.newest_version
        return (
            newest is not None
            and self._schedule.is_due(newest, evaluated=self._evaluated)
            and version >= self._schedule.due(newest)
            and version in self._dispatcher.published
        )

    async def _begin(self, version: PolicyVersion) -> None:
        found = EvaluationRound(version, self._prompts, self._plan)
        self._now = now = _Now(round=found, started_s=trio.current_time())
        before, self._evaluated = self._evaluated, version
        self._evaluators.are_at_work()
        self._evaluators.forget_absent()
        try:
            await self._ledger.evaluations.started(
                version,
                num_prompts=len(self._prompts),
                samples_per_prompt=self._plan.samples_per_prompt,
                sampling=self._plan.sampling,
                now_unix_s=time.time(),
            )
        except BaseException:
            self._now, self._evaluated = None, before
            raise
        now.is_ready = True
        log.info(
            "evaluation.started",
            version=version,
            num_prompts=len(self._prompts),
            samples_per_prompt=self._plan.samples_per_prompt,
            max_nodes=self._max_at_once(),
        )
        self._changes.notify()

    def _over(self, found: EvaluationRound) -> list[tuple[LeaseRecord, LeaseState]]:
        """Return the leases that nothing will come of in time."""
        now_s = trio.current_time()
        lost = [
            (lease, LeaseState.NODE_LOST)
            for lease in found.leases.active
            if not self._nodes.is_session(lease.peer, lease.session_id)
        ]
        late = found.leases.overdue(now_s=now_s, next_step=0)
        return list({lease.lease_id: (lease, state) for lease, state in late + lost}.values())

    def _tell_ended(self, ends: Sequence[LeaseEnded]) -> None:
        for end in ends:
            self._note_work(end.peer)
            tell_ended(end)
        if ends:
            self._changes.notify()

    def _note_work(self, peer: PeerId) -> None:
        """Note whether a node is kept from newer versions."""
        self._nodes.held_back(peer, is_held=self.has_work(peer), now_s=trio.current_time())

    def _why_over(self, now: _Now) -> str | None:
        """Return why an evaluation is over; None if it is not."""
        if not now.is_ready:
            return None
        if now.round.is_complete:
            return "complete"
        if trio.current_time() - now.started_s >= self._table.timeout_s:
            return f"eval.timeout_s = {self._table.timeout_s:g} is over"
        if not now.round.leases.active and self._are_gone(now.round.version):
            return f"no node samples with version {now.round.version} any more"
        return None

    def _max_at_once(self) -> int:
        return self._evaluators.max_at_once(is_training=not self._is_last)

    def _are_gone(self, version: int | None) -> bool:
        newest = self._dispatcher.newest_version
        return self._evaluators.are_gone(version, newest=newest, now_s=trio.current_time())

    async def _finish_round(self, now: _Now, why: str) -> None:
        """Work out what an evaluation found, record it, and tell."""
        found = now.round
        found.is_closed = True
        while found.is_judging:
            await self._changes.next_change.wait()
        self.end_leases([(lease, LeaseState.RETURNED) for lease in found.leases.active])
        point = await trio.to_thread.run_sync(
            partial(
                point_of,
                found,
                num_wanted=len(self._prompts),
                took_s=trio.current_time() - now.started_s,
            )
        )
        if point is not None:
            # Before it is on record as ended: so it may come twice after a crash, but never not.
            self._teller.write(point)
        outcome = Outcome.DROPPED if point is None else Outcome.COMPLETE
        if point is not None and not point.is_complete:
            outcome = Outcome.PARTIAL
        await self._ledger.evaluations.ended(
            found.version,
            outcome,
            None if point is None else point.as_dict(),
            now_unix_s=time.time(),
        )
        self._last, self._now = found, None
        self._evaluators.are_at_work()
        self._teller.say(found, point, outcome, why)
        self._changes.notify()
