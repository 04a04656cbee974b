"""Takes in submitted rollouts: checks, scores, records, and says what became of each.

A rollout counts once it is in the ledger; only then is the node told, and only then may an
update use it. Protocol ``/echo2/rollouts``.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from echo2swarm.bell import Bell
from echo2swarm.dispatch.group_table import SampleStatus
from echo2swarm.dispatch.groups import AcceptedRollout
from echo2swarm.dispatch.leasing import LeaseRecord, SampleKey
from echo2swarm.errors import ChildError
from echo2swarm.network.throttle import Throttle
from learner.dispatch.lease_desk import LeaseDesk
from learner.evaluation.live import LiveEvaluation
from learner.intake.checks import (
    ContentRules,
    Refusal,
    SubmissionHead,
    VersionFacts,
    check_content,
    check_lease,
    check_membership,
    check_status,
    check_version,
    key_of,
)
from learner.ledger.ledger import Ledger
from learner.nodes.node_table import NodeTable
from learner.ports import Scorer
from learner.progress import Progress
from learner.scoring.messages import Completion, Fault, Reward, sha256_of_prompt
from learner.scoring.verdicts import refusal_of
from learner.scoring.verifier_gate import VerifierGate
from protocols.codec import decode, encode
from protocols.ids import PeerId, PolicyVersion, short
from protocols.reasons import Reason
from protocols.rollouts import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    FinishReason,
    Rollout,
    RolloutSubmission,
    RolloutVerdict,
    SubmissionReply,
)

_MAX_DETAIL_CHARS: Final = 200
_TOKEN_BYTES: Final = 4
_IN_THREAD_BYTES: Final = 128 * 1024
"""Checking a larger submission would hold up the event loop."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Case:
    """One submitted rollout on its way to a verdict."""

    rollout: Rollout
    key: SampleKey
    refusal: Refusal | None = None
    is_reserved: bool = False
    accepted: AcceptedRollout | None = None

    @property
    def verdict(self) -> RolloutVerdict:
        refusal = self.refusal
        return RolloutVerdict(
            group_id=self.rollout.group_id,
            sample_index=self.rollout.sample_index,
            refusal=refusal.reason if refusal else None,
            detail=refusal.detail[:_MAX_DETAIL_CHARS] if refusal else "",
        )


class RolloutService:
    """Judges submissions, many at once."""

    def __init__(
        self,
        desk: LeaseDesk,
        *,
        run_id: str,
        rules: ContentRules,
        scorer: Scorer,
        nodes: NodeTable,
        ledger: Ledger,
        progress: Progress,
        bell: Bell,
        gate: VerifierGate,
        evaluation: LiveEvaluation | None = None,
    ) -> None:
        self._gate = gate
        self._desk = desk
        self._evaluation = evaluation
        self._run_id = run_id
        self._rules = rules
        self._scorer = scorer
        self._nodes = nodes
        self._ledger = ledger
        self._progress = progress
        self._bell = bell
        self._unproven = Throttle()

    async def answer(self, peer: PeerId, data: bytes) -> bytes:
        """Return the reply to one submission."""
        head = decode(data, SubmissionHead, max_bytes=MAX_REQUEST_BYTES)
        evaluated = self._evaluation.lease(head.lease_id) if self._evaluation else None
        refusal = self._check_whole(peer, head, evaluated)
        if refusal is None:
            submission = decode(data, RolloutSubmission, max_bytes=MAX_REQUEST_BYTES)
            if self._evaluation is not None and evaluated is not None:
                verdicts = await self._evaluation.judge(evaluated, submission)
            else:
                verdicts = await self._judge(peer, submission)
        else:
            verdicts = ()
            self._tell_refused(peer, [refusal], lease=head.lease_id)
            if self._may_record(peer):
                await self._ledger.refused(peer, [refusal], now_unix_s=time.time())
        reply = SubmissionReply(
            verdicts=verdicts,
            refusal=refusal.reason if refusal else None,
            detail=refusal.detail[:_MAX_DETAIL_CHARS] if refusal else "",
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
        self, peer: PeerId, submission: SubmissionHead, evaluated: LeaseRecord | None
    ) -> Refusal | None:
        if submission.run_id != self._run_id:
            return Refusal(Reason.WRONG_RUN, f"this is run {self._run_id}")
        if not self._nodes.is_session(peer, submission.session_id):
            return Refusal(Reason.NOT_A_MEMBER, "no heartbeat of this session is known")
        node = self._nodes.get(peer)
        if node is not None and node.is_distrusted(trio.current_time()):
            return Refusal(Reason.NOT_SAMPLED, node.distrust)
        lease = evaluated or self._desk.dispatcher.leases.get(submission.lease_id)
        return check_lease(submission, peer, lease)

    async def _judge(
        self, peer: PeerId, submission: RolloutSubmission
    ) -> tuple[RolloutVerdict, ...]:
        lease = self._desk.dispatcher.leases.get(submission.lease_id)
        assert lease is not None  # noqa: S101 - checked by the caller
        cases = [_Case(rollout, key_of(rollout)) for rollout in submission.rollouts]
        try:
            await self._check_all(cases, lease)
            await self._score(cases, peer)
            await self._ledger.judged(
                lease_id=lease.lease_id,
                peer=peer,
                accepted=[(case.key, case.accepted) for case in cases if case.accepted],
                refused=[case.refusal for case in cases if case.refusal],
                now_unix_s=time.time(),
            )
        except BaseException:
            # The node will not get an answer, and may submit again.
            for case in cases:
                if case.is_reserved:
                    self._desk.dispatcher.cancel_judging(case.key)
            raise
        await self._conclude(cases, lease)
        return tuple(case.verdict for case in cases)

    async def _check_all(self, cases: Sequence[_Case], lease: LeaseRecord) -> None:
        """Check claims, then content, and reserve what passes."""
        for case in cases:
            case.refusal = check_membership(case.rollout, lease) or self._check_claims(case, lease)
        left = [case for case in cases if case.refusal is None]
        num_bytes = sum(len(c.rollout.tokens) + len(c.rollout.logprobs) for c in left)
        check = partial(_check_contents, left, self._rules)
        if num_bytes > _IN_THREAD_BYTES:
            await trio.to_thread.run_sync(check)
        else:
            check()
        for case in left:
            # Again: another copy may have come in between, or be in this same submission.
            case.refusal = self._check_claims(case, lease) or case.refusal
            if case.refusal is None:
                self._desk.dispatcher.begin_judging(lease, case.key)
                case.is_reserved = True

    def _check_claims(self, case: _Case, lease: LeaseRecord) -> Refusal | None:
        dispatcher = self._desk.dispatcher
        facts = VersionFacts(
            next_step=dispatcher.next_step,
            max_staleness=dispatcher.rules.max_staleness,
            published=dispatcher.published,
        )
        return check_status(dispatcher.status_for(lease, case.key)) or check_version(
            case.rollout, lease, facts
        )

    async def _score(self, cases: Sequence[_Case], peer: PeerId) -> None:
        reserved = [case for case in cases if case.is_reserved]
        if not reserved:
            return
        asked = self._desk.dispatcher.prompt_tokens
        completions = [
            Completion(int(c.key[0]), c.rollout.tokens, sha256_of_prompt(asked(c.key[0])))
            for c in reserved
        ]
        try:
            rewards = await self._scorer.score(completions, owner=peer)
        except ChildError as exc:
            rewards = [Reward(None, "", str(exc), Fault.FAILED)] * len(reserved)
        self._tell_scored(rewards, peer)
        for case, reward in zip(reserved, rewards, strict=True):
            if reward.reward is None:
                case.refusal = refusal_of(reward)
                continue
            case.accepted = AcceptedRollout(
                tokens=case.rollout.tokens,
                logprobs=case.rollout.logprobs,
                version=PolicyVersion(case.rollout.oldest_version),
                reward=reward.reward,
                is_truncated=case.rollout.finish_reason is FinishReason.LENGTH,
                peer=peer,
                text=reward.text,
            )

    async def _conclude(self, cases: Sequence[_Case], lease: LeaseRecord) -> None:
        """Let the verdicts take effect; all of it before the next checkpoint."""
        dispatcher, now_s = self._desk.dispatcher, trio.current_time()
        ends, drops = [], []
        for case in cases:
            if case.accepted is not None:
                _, end, drop = dispatcher.accept(lease, case.key, case.accepted, now_s)
                drops += [drop] if drop else []
            elif case.key not in lease.samples:
                continue
            elif case.is_reserved or dispatcher.status_of(case.key) is SampleStatus.OPEN:
                is_unscorable = case.refusal.reason is Reason.UNSCORABLE if case.refusal else False
                drop, end = dispatcher.refuse(lease, case.key, now_s, is_unscorable=is_unscorable)
                drops += [drop] if drop else []
            else:
                end = dispatcher.settle(lease, case.key, now_s)
            ends += [end] if end else []
            case.is_reserved = False
        accepted = [case.accepted for case in cases if case.accepted is not None]
        num_accepted = len(accepted)
        num_tokens = sum(len(each.tokens) // _TOKEN_BYTES for each in accepted)
        is_first = not self._nodes.is_proven(lease.peer)
        self._nodes.accepted(lease.peer, num_accepted, now_s, num_tokens=num_tokens)
        self._progress.accepted.add(num_accepted, now_s)
        self._tell_refused(
            lease.peer, [case.refusal for case in cases if case.refusal], lease=lease.lease_id
        )
        log.info(
            "rollouts.judged",
            lease=lease.lease_id,
            peer=short(lease.peer),
            num_accepted=num_accepted,
            num_refused=len(cases) - num_accepted,
        )
        self._bell.ring()
        node = self._nodes.get(lease.peer)
        if is_first and num_accepted and node is not None:
            await self._ledger.joined(node.peer, node.advert, now_unix_s=time.time())
        await self._desk.record_ends(ends)
        await self._desk.record_drops(drops)

    def _tell_scored(self, rewards: Sequence[Reward], peer: PeerId) -> None:
        now_s = trio.current_time()
        num_too_costly = sum(reward.fault is Fault.TOO_COSTLY for reward in rewards)
        if num_too_costly:
            self._progress.num_too_costly += num_too_costly
            log.info(
                "answers.too_costly",
                peer=short(peer),
                count=num_too_costly,
                num_so_far=self._progress.num_too_costly,
                next="they count as wrong",
            )
        for reward in rewards:
            if reward.reward is not None and self._gate.scored(peer, now_s):
                log.info("verifier.works", next="leases are granted again")
                self._bell.ring()
            is_failed = reward.reward is None and reward.fault is not Fault.WAITING
            if is_failed and self._gate.failed(peer, reward.error, now_s):
                log.warning("verifier.failing", why=self._gate.report(now_s))

    def _tell_refused(self, peer: PeerId, refusals: Sequence[Refusal], *, lease: str) -> None:
        if self._progress.is_finished:
            return  # nobody's fault
        details = {refusal.reason: refusal.detail for refusal in refusals}
        for reason, count in Counter(refusal.reason for refusal in refusals).items():
            is_fault = reason is not Reason.ALREADY_ANSWERED
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


def _check_contents(cases: Sequence[_Case], rules: ContentRules) -> None:
    for case in cases:
        case.refusal = check_content(case.rollout, rules)
