"""Judges what nodes submit for an evaluation; nothing of it enters the tables of training."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from echo2swarm.scheduling.leases.lease_book import LeaseEnded, LeaseRecord, SampleKey
from learner.evaluation.round import EvaluationRound
from learner.ledger.evaluation_rows import FIRST_GROUP, ScoredSample
from learner.ledger.ledger import Ledger
from learner.ledger.refusal import Refusal, refusal_of
from learner.rollouts.checks import ContentRules, check_membership, sample_key_of
from learner.rollouts.work_kind import SubmittedRollout
from learner.scoring.messages import CompletionToScore, Reward, ScoreFault
from learner.scoring.ports import Scorer
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout

_NOT_LOOKED_AT: Final = frozenset({Reason.RATE_LIMITED, Reason.UNSCORABLE})
"""The sample is asked for again, of the same node if need be."""
NOT_FAULTS: Final = _NOT_LOOKED_AT | {
    Reason.ALREADY_ANSWERED,
    Reason.DUPLICATE,
    Reason.LEASE_EXPIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJudging:
    """Judges what is submitted for one lease of an evaluation.

    Args:
        round: the evaluation.
        lease: of it.
        rules: what completions must be like.
        scorer: of the held-out prompts.
        ledger: where answers are recorded before they count.
        on_judged: told how many answers were accepted, and the lease if it is over.
    """

    round: EvaluationRound
    lease: LeaseRecord
    rules: ContentRules
    scorer: Scorer
    ledger: Ledger
    on_judged: Callable[[int, Sequence[LeaseEnded]], None]

    @property
    def not_faults(self) -> frozenset[Reason]:
        """Reasons that are not held against the node."""
        return NOT_FAULTS

    def check(self, rollout: Rollout) -> Refusal | None:
        """Check that a rollout is an answer that is wanted, of the version evaluated."""
        return check_sample(self.round, self.lease, rollout)

    def reserve(self, key: SampleKey) -> None:
        """Take no other answer of this sample meanwhile."""
        self.round.begin_judging(key, self.lease)

    def cancel(self, key: SampleKey) -> None:
        """Give up a reservation."""
        self.round.cancel_judging(key)

    def to_score(self, rollout: Rollout) -> CompletionToScore:
        """Return what the scorer is asked."""
        key = sample_key_of(rollout)
        return CompletionToScore(
            key[0] - FIRST_GROUP, rollout.tokens, self.round.prompt_sha256(key)
        )

    def scored(self, rewards: Sequence[Reward]) -> None:
        """Do nothing: what the verifier fails on is counted in the figures."""

    def result_of(self, rollout: Rollout, reward: Reward) -> ScoredSample | Refusal:
        """Return the answer; one that the verifier fails on counts, too."""
        if reward.fault is ScoreFault.WAITING:
            return refusal_of(reward)
        return ScoredSample(
            reward=0.0 if reward.reward is None else reward.reward,
            is_failed=reward.reward is None,
            num_tokens=len(rollout.tokens) // 4,
            is_truncated=rollout.finish_reason is FinishReason.LENGTH,
            peer=self.lease.peer,
            text=reward.text,
        )

    async def record(
        self, accepted: Sequence[tuple[SampleKey, ScoredSample]], refused: Sequence[Refusal]
    ) -> None:
        """Count the node's faults, and record answers.

        In this order: if the second fails, the node submits again, and no answer is there twice.
        """
        now_unix_s = time.time()
        faults = [refusal for refusal in refused if refusal.reason not in NOT_FAULTS]
        if faults:
            await self.ledger.refused(self.lease.peer, faults, now_unix_s=now_unix_s)
        await self.ledger.evaluations.judged(
            self.round.version, self.lease.lease_id, accepted, now_unix_s=now_unix_s
        )

    async def conclude(self, results: Sequence[SubmittedRollout[ScoredSample]]) -> None:
        """Let the verdicts take effect."""
        ends = [end for result in results if (end := self._conclude_one(result)) is not None]
        self.on_judged(sum(result.accepted is not None for result in results), ends)

    def _conclude_one(self, result: SubmittedRollout[ScoredSample]) -> LeaseEnded | None:
        key, now_s = result.key, trio.current_time()
        if result.accepted is not None:
            return self.round.accept(self.lease, key, result.accepted, now_s)
        if result.is_reserved:
            self.round.cancel_judging(key)
        if result.refusal is None or key not in self.lease.samples:
            return None
        is_fault = result.refusal.reason not in NOT_FAULTS
        if is_fault or result.refusal.reason in _NOT_LOOKED_AT:
            return self.round.refuse(self.lease, key, now_s, is_fault=is_fault)
        return self.round.settle(self.lease, key, now_s)


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
