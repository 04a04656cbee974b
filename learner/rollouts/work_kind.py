"""A kind of work: what nodes are asked to sample, and what becomes of what they submit.

Training is one kind, evaluation another. The services for leases and for rollouts are given the
kinds in the order in which a node is offered work of them, and know nothing of what they are for.
How a kind is added: ``docs/architecture.md``.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from echo2swarm.scheduling.leases.lease_book import LeaseRecord, SampleKey
from echo2swarm.scheduling.leases.lease_rules import NoWork, WorkRequest
from learner.ledger.refusal import Refusal
from learner.rollouts.checks import ContentRules
from learner.scoring.messages import CompletionToScore, Reward
from learner.scoring.ports import Scorer
from protocols.ids import PeerId
from protocols.leases import Lease
from protocols.reasons import Reason
from protocols.rollouts import Rollout, RolloutVerdict

MAX_DETAIL_CHARS: Final = 200

AcceptedT = TypeVar("AcceptedT")
"""What a result that counts becomes."""


@dataclass(slots=True)
class SubmittedRollout(Generic[AcceptedT]):
    """One submitted rollout on its way to a verdict."""

    rollout: Rollout
    key: SampleKey
    refusal: Refusal | None = None
    is_reserved: bool = False
    """Whether no other result of its sample is taken meanwhile."""
    accepted: AcceptedT | None = None

    @property
    def verdict(self) -> RolloutVerdict:
        """What the node is told."""
        return RolloutVerdict(
            group_id=self.rollout.group_id,
            sample_index=self.rollout.sample_index,
            refusal=self.refusal.reason if self.refusal else None,
            detail=self.refusal.detail[:MAX_DETAIL_CHARS] if self.refusal else "",
        )


class Judging(Protocol[AcceptedT]):
    """Judges what is submitted for one lease, by the rules of its kind.

    :class:`learner.rollouts.rollout_service.RolloutService` calls the methods in this order:
    ``check``, ``reserve`` of what passes, ``to_score``, ``result_of``, ``record``, ``conclude``.
    If it fails before ``conclude``, it calls ``cancel`` of what is reserved.
    """

    @property
    def rules(self) -> ContentRules:
        """What completions must be like."""
        ...

    @property
    def scorer(self) -> Scorer:
        """Gives the rewards."""
        ...

    @property
    def not_faults(self) -> Collection[Reason]:
        """Reasons of refusals that are not held against the node."""
        ...

    def check(self, rollout: Rollout) -> Refusal | None:
        """Check that a result of this sample, and of these versions, is wanted now."""
        ...

    def reserve(self, key: SampleKey) -> None:
        """Take no other result of this sample until there is a verdict."""
        ...

    def cancel(self, key: SampleKey) -> None:
        """Give up a reservation: there will be no verdict."""
        ...

    def to_score(self, rollout: Rollout) -> CompletionToScore:
        """Return what the scorer is asked."""
        ...

    def scored(self, rewards: Sequence[Reward]) -> None:
        """Take note of how scoring went."""
        ...

    def result_of(self, rollout: Rollout, reward: Reward) -> AcceptedT | Refusal:
        """Return what a scored rollout counts as, or why it does not count."""
        ...

    async def record(
        self, accepted: Sequence[tuple[SampleKey, AcceptedT]], refused: Sequence[Refusal]
    ) -> None:
        """Put verdicts on record, before they take effect."""
        ...

    async def conclude(self, results: Sequence[SubmittedRollout[AcceptedT]]) -> None:
        """Let the verdicts take effect; all of it before the first checkpoint."""
        ...


class WorkKind(Protocol):
    """One kind of work."""

    @property
    def name(self) -> str:
        """The kind, for logs: ``training``, say."""
        ...

    async def grant(self, ask: WorkRequest, *, can_keep_version: bool) -> Lease | NoWork | None:
        """Lease work of this kind to a node.

        Args:
            ask: what the node wants.
            can_keep_version: whether it can keep its version until a lease is done.

        Returns:
            the lease; or why the node gets no work of any kind; or None if the kinds after this
            one may have some for it.
        """
        ...

    def lease(self, lease_id: str) -> LeaseRecord | None:
        """Return a lease of this kind, active or ended not long ago."""
        ...

    def num_in_hand(self, peer: PeerId) -> int:
        """Return how many samples a node has in hand."""
        ...

    def judging(self, lease: LeaseRecord) -> Judging[Any]:
        """Return what judges a submission for a lease of this kind."""
        ...

    async def give_back(self, lease: LeaseRecord) -> None:
        """Take an active lease back that its node will not do."""
        ...

    async def end_sessions(self, peer: PeerId, *, except_session: str | None) -> None:
        """End the leases of a node that is gone, or that came back as another process."""
        ...

    async def node_is_back(self, peer: PeerId, session_id: str) -> None:
        """Take note of a node that seemed to be gone, and was only silent."""
        ...


def find_lease(kinds: Sequence[WorkKind], lease_id: str) -> tuple[WorkKind, LeaseRecord] | None:
    """Return a lease with its kind; None if there is none of this id."""
    for kind in kinds:
        if (lease := kind.lease(lease_id)) is not None:
            return kind, lease
    return None
