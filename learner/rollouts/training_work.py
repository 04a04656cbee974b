"""Work of training: groups of completions that updates are made of."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from echo2swarm.scheduling.leases.groups import AcceptedRollout
from echo2swarm.scheduling.leases.lease_book import LeaseRecord, LeaseState, SampleKey
from echo2swarm.scheduling.leases.lease_rules import NoWork, WorkRequest
from echo2swarm.system.change_event import ChangeEvent
from learner.ledger.ledger import Ledger
from learner.ledger.refusal import Refusal, refusal_of
from learner.rollouts.checks import (
    ContentRules,
    VersionFacts,
    check_membership,
    check_status,
    check_version,
    sample_key_of,
)
from learner.rollouts.lease_desk import LeaseDesk
from learner.rollouts.work_kind import SubmittedRollout
from learner.scoring.messages import CompletionToScore, Reward, ScoreFault, sha256_of_prompt
from learner.scoring.ports import Scorer
from learner.scoring.verifier_gate import VerifierGate
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from protocols.ids import PeerId, PolicyVersion, short
from protocols.leases import Lease
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout

_NOT_FAULTS: Final = frozenset({Reason.ALREADY_ANSWERED})
_TOKEN_BYTES: Final = 4

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWork:
    """The kind of work that updates are made of.

    Args:
        desk: grants and ends leases.
        rules: what completions must be like.
        scorer: has the prompts, and gives the rewards.
        gate: closed while the verifier fails.
        nodes: who takes part.
        ledger: where results are recorded before they count.
        progress: of the run.
        changes: notified when there may be work again.
    """

    desk: LeaseDesk
    rules: ContentRules
    scorer: Scorer
    gate: VerifierGate
    nodes: NodeTable
    ledger: Ledger
    progress: LearnerProgress
    changes: ChangeEvent

    @property
    def name(self) -> str:
        """The kind, for logs."""
        return "training"

    async def grant(self, ask: WorkRequest, *, can_keep_version: bool) -> Lease | NoWork | None:
        """Lease prompts to a node, unless their verifier fails."""
        del can_keep_version  # A newer version is as good.
        if why := self.gate.why_not(trio.current_time()):
            return NoWork(why)
        if self.gate.is_closed:
            # To see whether the verifier works again: one prompt is enough.
            num_tried = min(ask.max_completions, self.desk.dispatcher.rules.group_size)
            ask = replace(ask, max_completions=num_tried)
        reply = await self.desk.grant(ask)
        if isinstance(reply, Lease):
            self.gate.granted(trio.current_time())
            self.nodes.no_work(ask.peer, "")
        elif reply.is_lasting and self.nodes.no_work(ask.peer, reply.why):
            log.info("node.too_slow", peer=short(ask.peer), why=reply.why)
        return reply

    def lease(self, lease_id: str) -> LeaseRecord | None:
        """Return a lease of training."""
        return self.desk.dispatcher.leases.get(lease_id)

    def num_in_hand(self, peer: PeerId) -> int:
        """Return how many samples a node has in hand."""
        return self.desk.dispatcher.leases.num_unsettled_of(peer)

    def judging(self, lease: LeaseRecord) -> "TrainingJudging":
        """Return what judges a submission for a lease."""
        return TrainingJudging(self, lease)

    async def give_back(self, lease: LeaseRecord) -> None:
        """Take a lease back."""
        await self.desk.end([(lease, LeaseState.RETURNED)])

    async def end_sessions(self, peer: PeerId, *, except_session: str | None) -> None:
        """End the leases of a node that is gone."""
        await self.desk.end_sessions(peer, except_session=except_session)

    async def node_is_back(self, peer: PeerId, session_id: str) -> None:
        """Give a node its leases back that was only silent."""
        await self.desk.node_is_back(peer, session_id)


@dataclass(frozen=True, slots=True)
class TrainingJudging:
    """Judges what is submitted for one lease of training."""

    work: TrainingWork
    lease: LeaseRecord

    @property
    def rules(self) -> ContentRules:
        """What completions must be like."""
        return self.work.rules

    @property
    def scorer(self) -> Scorer:
        """Gives the rewards."""
        return self.work.scorer

    @property
    def not_faults(self) -> frozenset[Reason]:
        """Reasons that are not held against the node."""
        return _NOT_FAULTS

    def check(self, rollout: Rollout) -> Refusal | None:
        """Check membership, whether a result is wanted, and the versions."""
        dispatcher = self.work.desk.dispatcher
        facts = VersionFacts(
            next_step=dispatcher.next_step,
            max_staleness=dispatcher.rules.max_staleness,
            published=dispatcher.published,
        )
        return (
            check_membership(rollout, self.lease)
            or check_status(dispatcher.status_for(self.lease, sample_key_of(rollout)))
            or check_version(rollout, self.lease, facts)
        )

    def reserve(self, key: SampleKey) -> None:
        """Take no other result of this sample meanwhile."""
        self.work.desk.reserve(self.lease, key)

    def cancel(self, key: SampleKey) -> None:
        """Give up a reservation."""
        self.work.desk.cancel(key)

    def to_score(self, rollout: Rollout) -> CompletionToScore:
        """Return what the scorer is asked."""
        prompt = self.work.desk.dispatcher.prompt_tokens(sample_key_of(rollout)[0])
        return CompletionToScore(rollout.group_id, rollout.tokens, sha256_of_prompt(prompt))

    def scored(self, rewards: Sequence[Reward]) -> None:
        """Take note of whether the verifier works."""
        peer, gate, now_s = self.lease.peer, self.work.gate, trio.current_time()
        for reward in rewards:
            if reward.reward is not None and gate.scored(peer, now_s):
                log.info("verifier.works", next="leases are granted again")
                self.work.changes.notify()
            is_failed = reward.reward is None and reward.fault is not ScoreFault.WAITING
            if is_failed and gate.failed(peer, reward.error, now_s):
                log.warning("verifier.failing", why=gate.report(now_s))

    def result_of(self, rollout: Rollout, reward: Reward) -> AcceptedRollout | Refusal:
        """Return what updates are made of."""
        if reward.reward is None:
            return refusal_of(reward)
        return AcceptedRollout(
            tokens=rollout.tokens,
            logprobs=rollout.logprobs,
            version=PolicyVersion(rollout.oldest_version),
            reward=reward.reward,
            is_truncated=rollout.finish_reason is FinishReason.LENGTH,
            peer=self.lease.peer,
            text=reward.text,
        )

    async def record(
        self, accepted: Sequence[tuple[SampleKey, AcceptedRollout]], refused: Sequence[Refusal]
    ) -> None:
        """Record results, and count refusals."""
        await self.work.ledger.judged(
            lease_id=self.lease.lease_id,
            peer=self.lease.peer,
            accepted=accepted,
            refused=refused,
            now_unix_s=time.time(),
        )

    async def conclude(self, results: Sequence[SubmittedRollout[AcceptedRollout]]) -> None:
        """Give groups their results, and the node its due."""
        work, peer, now_s = self.work, self.lease.peer, trio.current_time()
        accepted = [result.accepted for result in results if result.accepted is not None]
        is_first = bool(accepted) and not work.nodes.is_proven(peer)
        num_tokens = sum(len(each.tokens) // _TOKEN_BYTES for each in accepted)
        work.nodes.accepted(peer, len(accepted), now_s, num_tokens=num_tokens)
        work.progress.accepted.add(len(accepted), now_s)
        await work.desk.conclude(self.lease, results)
        node = work.nodes.get(peer)
        if is_first and node is not None:
            await work.ledger.joined(peer, node.advert, now_unix_s=time.time())
