"""Takes in submitted rollouts: checks, scores, records, and says what became of each.

A rollout counts once it is in the ledger; only then is the node told, and only then may an
update use it. Protocol ``/echo2/rollouts``.
"""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import structlog
import trio

from echo2swarm.scheduling.leases.lease_book import LeaseRecord
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import ChildError
from echo2swarm.system.throttle import Throttle
from learner.ledger.ledger import Ledger
from learner.ledger.refusal import Refusal
from learner.rollouts.checks import (
    ContentRules,
    SubmissionHead,
    check_content,
    check_lease,
    sample_key_of,
)
from learner.rollouts.work_kind import (
    MAX_DETAIL_CHARS,
    Judging,
    SubmittedRollout,
    WorkKind,
    find_lease,
)
from learner.scoring.messages import Reward, ScoreFault
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from protocols.codec import decode, encode
from protocols.ids import PeerId, short
from protocols.reasons import Reason
from protocols.rollouts import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Rollout,
    RolloutSubmission,
    RolloutVerdict,
    SubmissionReply,
)

_IN_THREAD_BYTES: Final = 128 * 1024
"""Checking a larger submission would hold up the event loop."""

log = structlog.get_logger()


class RolloutService:
    """Judges submissions, many at once.

    Args:
        kinds: of work that there are leases of.
        run_id: which run.
        nodes: for what was refused.
        ledger: for what was refused whole.
        progress: of the run.
        changes: notified when there may be work again.
    """

    def __init__(
        self,
        kinds: Sequence[WorkKind],
        *,
        run_id: str,
        nodes: NodeTable,
        ledger: Ledger,
        progress: LearnerProgress,
        changes: ChangeEvent,
    ) -> None:
        self._kinds = kinds
        self._run_id = run_id
        self._nodes = nodes
        self._ledger = ledger
        self._progress = progress
        self._changes = changes
        self._unproven = Throttle()

    async def answer(self, peer: PeerId, data: bytes) -> bytes:
        """Return the reply to one submission."""
        head = decode(data, SubmissionHead, max_bytes=MAX_REQUEST_BYTES)
        found = find_lease(self._kinds, head.lease_id)
        refusal = self._check_whole(peer, head, found[1] if found else None)
        verdicts: tuple[RolloutVerdict, ...] = ()
        if refusal is None and found is not None:
            submission = decode(data, RolloutSubmission, max_bytes=MAX_REQUEST_BYTES)
            verdicts = await self._judge(*found, submission.rollouts)
        elif refusal is not None:
            self._tell_refused(peer, [refusal], lease=head.lease_id)
            if self._may_record(peer):
                await self._ledger.refused(peer, [refusal], now_unix_s=time.time())
        reply = SubmissionReply(
            verdicts=verdicts,
            refusal=refusal.reason if refusal else None,
            detail=refusal.detail[:MAX_DETAIL_CHARS] if refusal else "",
            learner_step=self._progress.step,
        )
        return encode(reply, max_bytes=MAX_REPLY_BYTES)

    def _may_record(self, peer: PeerId) -> bool:
        """Whether a refusal goes into the ledger, which strangers must not fill."""
        if self._nodes.get(peer) is None:
            return False
        is_proven = self._nodes.is_proven(peer)
        return is_proven or self._unproven.admit(trio.current_time()) is not None

    def _check_whole(
        self, peer: PeerId, submission: SubmissionHead, lease: LeaseRecord | None
    ) -> Refusal | None:
        if submission.run_id != self._run_id:
            return Refusal(Reason.WRONG_RUN, f"this is run {self._run_id}")
        if not self._nodes.is_session(peer, submission.session_id):
            return Refusal(Reason.NOT_A_MEMBER, "no heartbeat of this session is known")
        node = self._nodes.get(peer)
        if node is not None and node.is_distrusted(trio.current_time()):
            return Refusal(Reason.NOT_SAMPLED, node.distrust)
        return check_lease(submission, peer, lease)

    async def _judge(
        self, kind: WorkKind, lease: LeaseRecord, rollouts: Sequence[Rollout]
    ) -> tuple[RolloutVerdict, ...]:
        judging: Judging[Any] = kind.judging(lease)
        results = [SubmittedRollout[Any](rollout, sample_key_of(rollout)) for rollout in rollouts]
        try:
            await _check_all(results, judging)
            await self._score([result for result in results if result.is_reserved], judging, lease)
            await judging.record(
                [(r.key, r.accepted) for r in results if r.accepted is not None],
                [r.refusal for r in results if r.refusal is not None],
            )
        except BaseException:
            # The node will not get an answer, and may submit again.
            for result in results:
                if result.is_reserved:
                    judging.cancel(result.key)
            self._changes.notify()
            raise
        self._tell_judged(results, kind, judging, lease)
        await judging.conclude(results)
        return tuple(result.verdict for result in results)

    async def _score(
        self, results: Sequence[SubmittedRollout[Any]], judging: Judging[Any], lease: LeaseRecord
    ) -> None:
        if not results:
            return
        completions = [judging.to_score(result.rollout) for result in results]
        try:
            rewards = await judging.scorer.score(completions, owner=lease.peer)
        except ChildError as exc:
            judging.scored([Reward(None, "", str(exc), ScoreFault.FAILED)] * len(results))
            for result in results:
                result.refusal = Refusal(Reason.UNSCORABLE, str(exc))
            return
        self._note_costly(rewards, lease.peer)
        judging.scored(rewards)
        for result, reward in zip(results, rewards, strict=True):
            found = judging.result_of(result.rollout, reward)
            if isinstance(found, Refusal):
                result.refusal = found
            else:
                result.accepted = found

    def _note_costly(self, rewards: Sequence[Reward], peer: PeerId) -> None:
        num_too_costly = sum(reward.fault is ScoreFault.TOO_COSTLY for reward in rewards)
        if num_too_costly:
            self._progress.num_too_costly += num_too_costly
            log.info(
                "answers.too_costly",
                peer=short(peer),
                count=num_too_costly,
                num_so_far=self._progress.num_too_costly,
                next="they count as wrong",
            )

    def _tell_judged(
        self,
        results: Sequence[SubmittedRollout[Any]],
        kind: WorkKind,
        judging: Judging[Any],
        lease: LeaseRecord,
    ) -> None:
        refusals = [result.refusal for result in results if result.refusal is not None]
        self._tell_refused(
            lease.peer, refusals, lease=lease.lease_id, not_faults=judging.not_faults
        )
        log.info(
            "rollouts.judged",
            kind=kind.name,
            lease=lease.lease_id,
            peer=short(lease.peer),
            num_accepted=len(results) - len(refusals),
            num_refused=len(refusals),
            is_kept=len(refusals) < len(results),
        )

    def _tell_refused(
        self,
        peer: PeerId,
        refusals: Sequence[Refusal],
        *,
        lease: str,
        not_faults: Collection[Reason] = (),
    ) -> None:
        if self._progress.is_finished:
            return  # nobody's fault
        details = {refusal.reason: refusal.detail for refusal in refusals}
        for reason, count in Counter(refusal.reason for refusal in refusals).items():
            is_fault = reason not in not_faults
            if is_fault:
                self._nodes.refused(peer, reason, details[reason], count)
                if self._nodes.get(peer) is not None:  # strangers must not spoil the figures
                    self._progress.refused.add(count, trio.current_time())
            tell = log.warning if is_fault else log.info
            tell(
                "rollouts.refused",
                peer=short(peer),
                lease=lease,
                reason=reason.value,
                count=count,
                detail=details[reason],
            )


async def _check_all(results: Sequence[SubmittedRollout[Any]], judging: Judging[Any]) -> None:
    """Check claims, then content, and reserve what passes."""
    for result in results:
        result.refusal = judging.check(result.rollout)
    left = [result for result in results if result.refusal is None]
    num_bytes = sum(len(r.rollout.tokens) + len(r.rollout.logprobs) for r in left)
    check = partial(_check_contents, left, judging.rules)
    if num_bytes > _IN_THREAD_BYTES:
        await trio.to_thread.run_sync(check)
    else:
        check()
    for result in left:
        # Again: another copy may have come in between, or be in this same submission.
        result.refusal = judging.check(result.rollout) or result.refusal
        if result.refusal is None:
            judging.reserve(result.key)
            result.is_reserved = True


def _check_contents(results: Sequence[SubmittedRollout[Any]], rules: ContentRules) -> None:
    for result in results:
        result.refusal = check_content(result.rollout, rules)
