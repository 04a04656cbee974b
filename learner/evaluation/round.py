"""One evaluation of one version, without I/O: what lacks, who is at work on it, what came.

All its samples are of the one version; what another one sampled does not count. A node that
has its leases keeps that version until they are done (``docs/specs/leases.md``), and only one
that samples with it is given any. No sample counts twice: each is open, being judged, or
answered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final, NamedTuple

from echo2swarm.scheduling.leases.late_leases import late_at_s
from echo2swarm.scheduling.leases.lease_book import (
    LeaseBook,
    LeaseEnded,
    LeaseRecord,
    LeaseState,
    SampleKey,
)
from echo2swarm.scheduling.leases.lease_rules import MAX_LEASE_PROMPT_BYTES
from echo2swarm.scheduling.leases.node_pace import PaceBook
from learner.evaluation.held_out import sample_seed
from learner.ledger.evaluation_rows import FIRST_GROUP, ScoredSample, group_of
from learner.scoring.messages import Prompt, sha256_of_prompt
from protocols.ids import GroupId, LeaseId, PeerId, PolicyVersion
from protocols.leases import MAX_GROUPS, Lease, LeasedGroup, SampleSpec
from protocols.sampling import SamplingParams

MAX_LEASES_PER_NODE: Final = 4
_NOT_MISSING: Final = object()
_TOOK_AT_LEAST: Final = frozenset({LeaseState.TIMED_OUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What is asked in every evaluation of a run."""

    samples_per_prompt: int
    sampling: SamplingParams
    seed: int
    """Of the run; the seeds of samples follow from it, the same for every version."""
    lease_timeout_s: float
    last_step: int
    """Of the run; so long, nodes keep a lease."""


class HeldOutRequest(NamedTuple):
    """A node that wants work."""

    peer: PeerId
    session_id: str
    max_completions: int


class EvaluationRound:
    """The state of one evaluation.

    Args:
        version: what is evaluated.
        prompts: the held-out ones, numbered from 0.
        plan: what is made of each.
        answers: what an earlier process of the learner has got already.
        leases: what it had leased; results of these are still welcome.
        num_leases: how often it leased something for this round.
    """

    def __init__(
        self,
        version: PolicyVersion,
        prompts: Sequence[Prompt],
        plan: RoundPlan,
        *,
        answers: Mapping[SampleKey, ScoredSample] | None = None,
        leases: Iterable[LeaseRecord] = (),
        num_leases: int = 0,
    ) -> None:
        self.version = version
        self.leases = LeaseBook()
        self.answers: dict[SampleKey, ScoredSample] = dict(answers or {})
        self.is_closed = False
        """No more is leased or taken."""
        self._plan = plan
        self._tokens = {group_of(prompt.index): prompt.tokens for prompt in prompts}
        self._num_leases = num_leases
        self._paces = PaceBook()
        self._judging: dict[SampleKey, LeaseId] = {}
        self._shut_out: set[PeerId] = set()
        self._holders: dict[SampleKey, LeaseId] = {}
        self._backups: dict[SampleKey, LeaseId] = {}
        """Who was asked as well, since the holder is late."""
        keys = [(g, k) for g in self._tokens for k in range(plan.samples_per_prompt)]
        self._missing = dict.fromkeys(key for key in keys if key not in self.answers)
        self.num_wanted = len(keys)
        for lease in leases:
            self.leases.remember(lease)

    @property
    def num_missing(self) -> int:
        """Samples that nobody is at work on."""
        return len(self._missing)

    @property
    def is_complete(self) -> bool:
        """Whether every sample has its answer."""
        return len(self.answers) == self.num_wanted

    @property
    def is_judging(self) -> bool:
        """Whether there are results whose verdict is not known yet."""
        return bool(self._judging)

    @property
    def evaluators(self) -> set[PeerId]:
        """The nodes that have work of it."""
        return {lease.peer for lease in self.leases.active}

    def rewards_NK(self) -> list[list[float]]:
        """Return the rewards of those prompts that have all their samples."""
        return [[answer.reward for answer in answers] for answers in self._answered()]

    def counted(self) -> list[ScoredSample]:
        """Return the answers that count: of those prompts that have all their samples."""
        return [answer for answers in self._answered() for answer in answers]

    def prompt_sha256(self, key: SampleKey) -> bytes:
        """Return what tells the prompt of a sample from every other."""
        return sha256_of_prompt(self._tokens[key[0]])

    def _answered(self) -> list[list[ScoredSample]]:
        size = range(self._plan.samples_per_prompt)
        found = [[self.answers.get((g, k)) for k in size] for g in self._tokens]
        whole = [[answer for answer in row if answer is not None] for row in found]
        return [row for row in whole if len(row) == len(size)]

    # Leasing.

    def grant(
        self, asker: HeldOutRequest, *, max_evaluators: int, now_s: float
    ) -> tuple[Lease, LeaseRecord] | None:
        """Lease samples to a node that samples with the version; None if there is nothing for it.

        Args:
            asker: the node.
            max_evaluators: nodes that may have work of it at once.
            now_s: the present.
        """
        # Who is late may be hanging, and must not keep others from being asked in its place.
        at_work = [lease for lease in self.leases.active if not self.is_late(lease, now_s)]
        others = {lease.peer for lease in at_work} - {asker.peer}
        wanted = list(self._missing) or self._late_keys(asker.peer, now_s)
        if (
            self.is_closed
            or not wanted
            or asker.peer in self._shut_out
            or len(others) >= max_evaluators
            or self.leases.num_of_peer(asker.peer) >= MAX_LEASES_PER_NODE
        ):
            return None
        keys = self._choose(wanted, self._limit(asker, max_evaluators, len(wanted)))
        if not keys:
            return None
        self._num_leases += 1
        record = LeaseRecord(
            lease_id=LeaseId(f"eval-{self.version:06d}-{self._num_leases:04d}"),
            peer=asker.peer,
            session_id=asker.session_id,
            min_version=self.version,
            deadline_step=self._plan.last_step,
            granted_at_s=now_s,
            expires_at_s=now_s + self._plan.lease_timeout_s,
            samples=frozenset(keys),
            unsettled=set(keys),
            num_in_hand=self.leases.num_unsettled_of(asker.peer) + len(keys),
        )
        for key in keys:
            is_backup = self._missing.pop(key, _NOT_MISSING) is _NOT_MISSING
            (self._backups if is_backup else self._holders)[key] = record.lease_id
        self.leases.add(record)
        return self._lease(record, keys), record

    def is_late(self, lease: LeaseRecord, now_s: float) -> bool:
        """Whether a lease takes so long that others should be asked for the same, too."""
        pace, median_s = self._paces.get(lease.peer), self._paces.median_each_s()
        is_known = pace is not None and not pace.is_guess
        at_s = late_at_s(
            granted_at_s=lease.granted_at_s,
            expires_at_s=lease.expires_at_s,
            slow_s=pace.slow_s(lease.num_in_hand) if pace is not None and is_known else None,
            typical_s=None if median_s is None else median_s * lease.num_in_hand,
            rescue_s=None,
            deadline_s=lease.expires_at_s,
        )
        return now_s >= at_s

    def late(self, now_s: float) -> set[LeaseId]:
        """Return the leases that are late."""
        return {lease.lease_id for lease in self.leases.active if self.is_late(lease, now_s)}

    def _late_keys(self, asker: PeerId, now_s: float) -> list[SampleKey]:
        """Return the samples of late leases that nobody else was asked for yet."""
        return [
            key
            for lease in self.leases.active
            if lease.peer != asker and self.is_late(lease, now_s)
            for key in sorted(lease.unsettled)
            if self.is_open(key)
            and key not in self._backups
            and self._holders.get(key) == lease.lease_id
        ]

    def _limit(self, asker: HeldOutRequest, max_evaluators: int, num_wanted: int) -> int:
        """Return how many samples a node gets at once.

        Not more than it can do in time; and its share of what is left, so that all nodes are
        done at about the same time.
        """
        size = self._plan.samples_per_prompt
        share = ceil(num_wanted / max_evaluators)
        limit = min(asker.max_completions, max(size, share))
        pace = self._paces.get(asker.peer)
        if pace is None:
            return min(limit, size)
        in_hand = self.leases.num_unsettled_of(asker.peer)
        in_time = pace.num_within(self._plan.lease_timeout_s / 2) - in_hand
        return max(0 if in_hand else 1, floor(min(limit, in_time)))

    def _choose(self, wanted: Sequence[SampleKey], limit: int) -> list[SampleKey]:
        keys: list[SampleKey] = []
        groups: set[GroupId] = set()
        num_bytes = 0
        for key in wanted:
            if len(keys) >= limit:
                break
            if key[0] not in groups:
                num_bytes += len(self._tokens[key[0]])
                if groups and (num_bytes > MAX_LEASE_PROMPT_BYTES or len(groups) >= MAX_GROUPS):
                    break
                groups.add(key[0])
            keys.append(key)
        return keys

    def _lease(self, record: LeaseRecord, keys: Sequence[SampleKey]) -> Lease:
        by_group: dict[GroupId, list[SampleSpec]] = {}
        for group, k in keys:
            seed = sample_seed(self._plan.seed, group - FIRST_GROUP, k)
            by_group.setdefault(group, []).append(SampleSpec(index=k, seed=seed))
        return Lease(
            lease_id=record.lease_id,
            min_version=self.version,
            deadline_step=record.deadline_step,
            groups=tuple(
                LeasedGroup(group, self._tokens[group], tuple(specs))
                for group, specs in by_group.items()
            ),
            sampling=self._plan.sampling,
            max_version=self.version,
        )

    def end_lease(self, lease: LeaseRecord, state: LeaseState, now_s: float) -> LeaseEnded:
        """End an active lease before its time; what it lacks is leased to others."""
        ended = self.leases.end(lease, state, now_s)
        for key in sorted(lease.unsettled):
            self._release(key, lease)
        self._note_pace(lease, ended)
        return ended

    # Results.

    def is_open(self, key: SampleKey) -> bool:
        """Whether a sample has no answer, and none is being judged."""
        return key not in self.answers and key not in self._judging

    def is_answered_by(self, key: SampleKey, lease: LeaseRecord) -> bool:
        """Whether a result that came by this very lease was taken, or is being judged."""
        return key not in lease.unsettled or self._judging.get(key) == lease.lease_id

    def begin_judging(self, key: SampleKey, lease: LeaseRecord) -> None:
        """Reserve an open sample for a result that is being scored."""
        self._judging[key] = lease.lease_id
        self._missing.pop(key, None)

    def cancel_judging(self, key: SampleKey) -> None:
        """Give up a reservation: there will be no verdict."""
        del self._judging[key]
        if not self._is_at_work(self._holders.get(key), key):
            self._holders.pop(key, None)
            self._hand_to_backup(key)

    def accept(
        self, lease: LeaseRecord, key: SampleKey, answer: ScoredSample, now_s: float
    ) -> LeaseEnded | None:
        """Take the result that :meth:`begin_judging` announced; returns the end of its lease."""
        del self._judging[key]
        self.answers[key] = answer
        return self.settle(lease, key, now_s)

    def refuse(
        self, lease: LeaseRecord, key: SampleKey, now_s: float, *, is_fault: bool
    ) -> LeaseEnded | None:
        """Note that a result is no good; if that is its node's fault, it is asked no more."""
        if is_fault:
            self._shut_out.add(lease.peer)
        self._release(key, lease)
        return self.settle(lease, key, now_s)

    def settle(self, lease: LeaseRecord, key: SampleKey, now_s: float) -> LeaseEnded | None:
        """Note that a lease needs to bring no more of a sample; returns its end, if by this.

        Unless its own result of it is being judged: that one will tell.
        """
        if self._judging.get(key) == lease.lease_id:
            return None
        ended = self.leases.settle(lease, key, now_s)
        if ended is not None:
            self._note_pace(lease, ended)
        return ended

    # Inside.

    def _release(self, key: SampleKey, lease: LeaseRecord) -> None:
        if self._backups.get(key) == lease.lease_id:
            del self._backups[key]
        elif self._holders.get(key) == lease.lease_id:
            del self._holders[key]
            self._hand_to_backup(key)

    def _hand_to_backup(self, key: SampleKey) -> None:
        """Go on with whoever was asked as well for a sample that nobody holds; else it lacks."""
        backup = self._backups.pop(key, None)
        if backup is not None and self._is_at_work(backup, key):
            self._holders[key] = backup
        elif self.is_open(key):
            self._missing[key] = None

    def _is_at_work(self, lease_id: LeaseId | None, key: SampleKey) -> bool:
        lease = None if lease_id is None else self.leases.get(lease_id)
        return lease is not None and key in lease.unsettled

    def _note_pace(self, lease: LeaseRecord, ended: LeaseEnded) -> None:
        is_done = ended.state is LeaseState.DONE
        if is_done or ended.state in _TOOK_AT_LEAST:
            self._paces.add(lease.peer, lease.num_in_hand, ended.took_s, is_done=is_done)
