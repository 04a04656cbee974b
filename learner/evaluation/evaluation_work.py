"""Work of evaluations: held-out prompts, sampled with one version."""

from collections.abc import Sequence
from dataclasses import dataclass

from echo2swarm.scheduling.leases.lease_book import LeaseEnded, LeaseRecord, LeaseState
from echo2swarm.scheduling.leases.lease_rules import NoWork, WorkRequest
from learner.evaluation.judging import EvaluationJudging
from learner.evaluation.live import LiveEvaluation
from learner.ledger.ledger import Ledger
from learner.rollouts.checks import ContentRules
from learner.scoring.ports import Scorer
from learner.state.progress import LearnerProgress
from protocols.ids import PeerId
from protocols.leases import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationWork:
    """The kind of work that evaluations are made of.

    Args:
        evaluation: decides which version is evaluated, and who gets leases of it.
        rules: what completions must be like.
        scorer: of the held-out prompts.
        ledger: where answers are recorded before they count.
        progress: of the run.
    """

    evaluation: LiveEvaluation
    rules: ContentRules
    scorer: Scorer
    ledger: Ledger
    progress: LearnerProgress

    @property
    def name(self) -> str:
        """The kind, for logs."""
        return "evaluation"

    async def grant(self, ask: WorkRequest, *, can_keep_version: bool) -> Lease | NoWork | None:
        """Lease held-out prompts to a node that can keep its version; None if it may train.

        A node that has to wait for the scorer of the held-out prompts is asked none meanwhile.
        """
        if not can_keep_version:
            return None
        if self.scorer.wait_of(ask.peer) is not None:
            return None
        lease = await self.evaluation.grant(ask)
        if lease is None and self.evaluation.has_work(ask.peer):
            # Else its training would wait, and pass for slow.
            return NoWork("it has work of an evaluation in hand")
        return lease

    def lease(self, lease_id: str) -> LeaseRecord | None:
        """Return a lease of an evaluation."""
        for found in self.evaluation.rounds:
            if (lease := found.leases.get(lease_id)) is not None:
                return lease
        return None

    def num_in_hand(self, peer: PeerId) -> int:
        """Return how many samples a node has in hand."""
        running = self.evaluation.running
        return 0 if running is None else running.leases.num_unsettled_of(peer)

    def judging(self, lease: LeaseRecord) -> EvaluationJudging:
        """Return what judges a submission for a lease."""
        rounds = self.evaluation.rounds
        return EvaluationJudging(
            round=next(r for r in rounds if r.leases.get(lease.lease_id) is lease),
            lease=lease,
            rules=self.rules,
            scorer=self.scorer,
            ledger=self.ledger,
            on_judged=self._note_judged,
        )

    async def give_back(self, lease: LeaseRecord) -> None:
        """Take a lease back."""
        self.evaluation.end_leases([(lease, LeaseState.RETURNED)])

    async def end_sessions(self, peer: PeerId, *, except_session: str | None) -> None:
        """End the leases of a node that is gone."""
        running = self.evaluation.running
        if running is not None:
            self.evaluation.end_leases(
                [
                    (lease, LeaseState.NODE_LOST)
                    for lease in running.leases.of_peer(peer)
                    if lease.session_id != except_session
                ]
            )

    async def node_is_back(self, peer: PeerId, session_id: str) -> None:
        """Do nothing: what the node had is leased to others, and may still come from it."""

    def _note_judged(self, num_accepted: int, ends: Sequence[LeaseEnded]) -> None:
        self.progress.num_evaluated += num_accepted
        self.evaluation.judged(ends)
