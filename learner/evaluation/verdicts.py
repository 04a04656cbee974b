"""Judges what nodes submit for an evaluation: checks, scores, records.

Beside :mod:`learner.rollouts.rollout_service`, which does so for training: nothing that comes by
a lease of an evaluation gets there.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from echo2swarm.scheduling.leases.lease_book import LeaseEnded, LeaseRecord, SampleKey
from echo2swarm.system.errors import ChildError
from learner.evaluation.round import EvaluationRound
from learner.ledger.evaluation_rows import FIRST_GROUP, ScoredSample
from learner.ledger.ledger import Ledger
from learner.ledger.refusal import Refusal, refusal_of
from learner.rollouts.checks import ContentRules, check_content, check_membership, sample_key_of
from learner.scoring.messages import CompletionToScore, Reward, ScoreFault
from learner.scoring.ports import Scorer
from learner.state.node_table import NodeTable
from protocols.ids import short
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout, RolloutSubmission, RolloutVerdict

_MAX_DETAIL_CHARS: Final = 200
_NOBODYS_FAULT: Final = frozenset(
    {Reason.ALREADY_ANSWERED, Reason.DUPLICATE, Reason.LEASE_EXPIRED, Reason.UNSCORABLE}
)

log = structlog.get_logger()


@dataclass(slots=True)
class _Case:
    rollout: Rollout
    key: SampleKey
    refusal: Refusal | None = None
    answer: ScoredSample | None = None

    @property
    def verdict(self) -> RolloutVerdict:
        return RolloutVerdict(
            group_id=self.rollout.group_id,
            sample_index=self.rollout.sample_index,
            refusal=self.refusal.reason if self.refusal else None,
            detail=self.refusal.detail[:_MAX_DETAIL_CHARS] if self.refusal else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJudge:
    """Judges submissions, many at once.

    Args:
        rules: what completions must be like.
        scorer: of the held-out prompts.
        ledger: where answers are recorded before they count.
        nodes: for what was refused.
    """

    rules: ContentRules
    scorer: Scorer
    ledger: Ledger
    nodes: NodeTable

    async def judge(
        self, found: EvaluationRound, lease: LeaseRecord, submission: RolloutSubmission
    ) -> tuple[tuple[RolloutVerdict, ...], list[LeaseEnded]]:
        """Return the verdicts, in the order of the submission, and the lease if it is over."""
        cases = [_Case(rollout, sample_key_of(rollout)) for rollout in submission.rollouts]
        reserved: list[_Case] = []
        try:
            await trio.to_thread.run_sync(partial(_check_contents, cases, self.rules))
            for case in cases:
                # One after the other: a copy may be in this same submission.
                case.refusal = check_sample(found, lease, case.rollout) or case.refusal
                if case.refusal is None:
                    found.begin_judging(case.key, lease)
                    reserved.append(case)
            await self._score(found, reserved, lease)
            answers = [(case.key, case.answer) for case in reserved if case.answer is not None]
            await self.ledger.evaluations.judged(
                found.version, lease.lease_id, answers, now_unix_s=time.time()
            )
        except BaseException:
            # The node will not get an answer, and may submit again.
            for case in reserved:
                found.cancel_judging(case.key)
            raise
        for case in reserved:
            if case.answer is None:
                found.cancel_judging(case.key)
        ends = self._conclude(found, lease, cases)
        await self._record_faults(lease, cases)
        return tuple(case.verdict for case in cases), ends

    async def _score(
        self, found: EvaluationRound, reserved: Sequence[_Case], lease: LeaseRecord
    ) -> None:
        if not reserved:
            return
        completions = [
            CompletionToScore(c.key[0] - FIRST_GROUP, c.rollout.tokens, found.prompt_sha256(c.key))
            for c in reserved
        ]
        try:
            rewards: Sequence[Reward] = await self.scorer.score(completions, owner=lease.peer)
        except ChildError as exc:
            for case in reserved:
                case.refusal = Refusal(Reason.UNSCORABLE, str(exc))
            return
        for case, reward in zip(reserved, rewards, strict=True):
            if reward.fault is ScoreFault.WAITING:
                case.refusal = refusal_of(reward)
                continue
            case.answer = ScoredSample(
                reward=0.0 if reward.reward is None else reward.reward,
                is_failed=reward.reward is None,
                num_tokens=len(case.rollout.tokens) // 4,
                is_truncated=case.rollout.finish_reason is FinishReason.LENGTH,
                peer=lease.peer,
                text=reward.text,
            )

    def _conclude(
        self, found: EvaluationRound, lease: LeaseRecord, cases: Sequence[_Case]
    ) -> list[LeaseEnded]:
        """Let the verdicts take effect."""
        now_s = trio.current_time()
        ends: list[LeaseEnded | None] = []
        for case in cases:
            if case.answer is not None:
                ends.append(found.accept(lease, case.key, case.answer, now_s))
            elif case.refusal is not None and case.key in lease.samples:
                is_fault = case.refusal.reason not in _NOBODYS_FAULT
                if is_fault or case.refusal.reason is Reason.UNSCORABLE:
                    ends.append(found.refuse(lease, case.key, now_s, is_fault=is_fault))
                else:
                    ends.append(found.settle(lease, case.key, now_s))
        self._tell(lease, [case.refusal for case in cases if case.refusal is not None])
        log.info(
            "evaluation.judged",
            lease=lease.lease_id,
            peer=short(lease.peer),
            num_accepted=sum(case.answer is not None for case in cases),
            num_refused=sum(case.refusal is not None for case in cases),
        )
        return [end for end in ends if end is not None]

    async def _record_faults(self, lease: LeaseRecord, cases: Sequence[_Case]) -> None:
        faults = [c.refusal for c in cases if c.refusal and c.refusal.reason not in _NOBODYS_FAULT]
        if faults:
            await self.ledger.refused(lease.peer, faults, now_unix_s=time.time())

    def _tell(self, lease: LeaseRecord, refusals: Sequence[Refusal]) -> None:
        details = {refusal.reason: refusal.detail for refusal in refusals}
        for reason, count in Counter(refusal.reason for refusal in refusals).items():
            is_fault = reason not in _NOBODYS_FAULT
            if is_fault:
                self.nodes.refused(lease.peer, reason, details[reason], count)
            tell = log.warning if is_fault else log.info
            tell(
                "rollouts.refused",
                peer=short(lease.peer),
                lease=lease.lease_id,
                reason=reason.value,
                count=count,
                detail=details[reason],
            )


def check_sample(found: EvaluationRound, lease: LeaseRecord, rollout: Rollout) -> Refusal | None:
    """Check that a rollout is an answer that its lease asked for, of the version evaluated."""
    refusal = check_membership(rollout, lease)
    if refusal is not None:
        return refusal
    if found.is_closed:
        return Refusal(Reason.LEASE_EXPIRED, "its evaluation is over")
    key = sample_key_of(rollout)
    if not found.is_open(key):
        if found.is_answered_by(key, lease):
            return Refusal(Reason.DUPLICATE, "there is a result of this sample already")
        return Refusal(Reason.ALREADY_ANSWERED, "another node was asked, too, and was faster")
    versions = {rollout.oldest_version, rollout.newest_version}
    if versions != {found.version}:
        which = " to ".join(str(version) for version in sorted(versions))
        return Refusal(
            Reason.WRONG_VERSION, f"sampled with {which}; version {found.version} is evaluated"
        )
    return None


def _check_contents(cases: Sequence[_Case], rules: ContentRules) -> None:
    for case in cases:
        case.refusal = check_content(case.rollout, rules)
