"""Dispatch, without I/O: who samples what, and what became of it.

A lease that ends early, for whatever cause, makes its unaccepted samples missing, and they
are leased again, one by one if need be. What a node is late with is asked of a second one
before that. A late result is still taken if its sample is yet without one: nothing is taken
twice.

The learner paces: it leases only what is expected to be finished, and fresh, when its turn
comes, see :mod:`~echo2swarm.scheduling.leases.lease_choice`. The caller passes the time, and
performs what is returned.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from echo2swarm.scheduling import staleness
from echo2swarm.scheduling.capacity.model import MIN_TRAIN_S, Delays, LearnerLoad, forecast
from echo2swarm.scheduling.leases.batcher import Formed, ReadyGroups
from echo2swarm.scheduling.leases.group_table import GroupTable, SampleStatus
from echo2swarm.scheduling.leases.groups import (
    AcceptedRollout,
    CompleteGroup,
    DropReason,
    QueuedPrompt,
)
from echo2swarm.scheduling.leases.late_leases import LateLeases, late_at_s
from echo2swarm.scheduling.leases.learner_pace import LearnerPace
from echo2swarm.scheduling.leases.lease_book import (
    LeaseBook,
    LeaseEnded,
    LeaseRecord,
    LeaseState,
    SampleKey,
    sampling_seed,
)
from echo2swarm.scheduling.leases.lease_choice import LeaseChoice, LeaseChooser
from echo2swarm.scheduling.leases.lease_rules import DispatchRules, NoWork, WorkRequest
from echo2swarm.scheduling.leases.node_budget import Candidate
from echo2swarm.scheduling.leases.node_pace import PaceBook
from echo2swarm.scheduling.leases.node_supply import NodeSupply
from echo2swarm.scheduling.leases.open_group import Dropped, OpenGroup
from echo2swarm.scheduling.leases.prompt_queue import PromptQueue
from echo2swarm.scheduling.leases.zero_signal_groups import ZeroSignalGroups
from protocols.ids import GroupId, LeaseId, PeerId, PolicyVersion
from protocols.leases import Lease, LeasedGroup, SampleSpec

_KEEP_TOKENS: Final = 0.99
"""The weight of the mean length so far, against one more completion."""
_KEEP_BROADCAST: Final = 0.9
"""The same of what a version takes to arrive, against one more request."""
_SLACK: Final = 1.25
"""Of the learner's period over what it could be."""
_TOOK_AT_LEAST: Final = frozenset({LeaseState.TIMED_OUT, LeaseState.TOO_OLD})
"""How leases end that would have taken longer."""


class Accepted(NamedTuple):
    """What came of an accepted result."""

    status: SampleStatus
    """``OPEN`` if it was taken, or what became of its group while it was judged."""
    ended: LeaseEnded | None
    """Its lease, if this was the last result."""
    dropped: Dropped | None
    """Its group, if it is complete with this, without signal, and replaced."""


class Dispatcher:
    """The state of all leases and open groups of a run.

    Args:
        rules: from the configuration.
        num_leases: granted by earlier processes of the run; ids go on from there.
        next_step: the first update that needs a batch.
    """

    def __init__(self, rules: DispatchRules, *, num_leases: int = 0, next_step: int = 0) -> None:
        self._rules = rules
        self._num_leases = num_leases
        self._prompts = PromptQueue()
        self._groups = GroupTable(max_attempts=rules.max_attempts)
        self._leases = LeaseBook()
        self._late = LateLeases(self._leases)
        self._paces = PaceBook()
        self._supply = NodeSupply()
        self._learner = LearnerPace(next_step)
        self._equal = ZeroSignalGroups(
            max_per_step=rules.max_replaced, groups_per_step=rules.groups_per_step
        )
        self._mean_tokens: float | None = None
        self._broadcast_s = 0.0
        self._chooser = LeaseChooser(
            rules=rules,
            groups=self._groups,
            prompts=self._prompts,
            leases=self._leases,
            late=self._late,
            paces=self._paces,
            supply=self._supply,
            learner=self._learner,
            equal=self._equal,
            mean_tokens=lambda: self._mean_tokens,
        )

    # What is asked of it.

    @property
    def rules(self) -> DispatchRules:
        """The rules of the run."""
        return self._rules

    @property
    def leases(self) -> LeaseBook:
        """All leases, to look at."""
        return self._leases

    @property
    def paces(self) -> PaceBook:
        """What nodes take for their leases, to look at."""
        return self._paces

    @property
    def next_step(self) -> int:
        """The next update that has no batch yet."""
        return self._learner.next_step

    @property
    def newest_version(self) -> PolicyVersion | None:
        """The newest version published."""
        return max(self._learner.published, default=None)

    @property
    def num_outstanding(self) -> int:
        """Groups in flight or buffered."""
        return len(self._groups)

    @property
    def num_backups(self) -> int:
        """Samples that a second node was asked for, for the next update."""
        return self._groups.num_backups

    @property
    def equal_groups(self) -> ZeroSignalGroups:
        """What became of groups without signal, to look at."""
        return self._equal

    @property
    def has_room(self) -> bool:
        """Whether more groups may be in flight or buffered."""
        num_expected = self._groups.num_expected(used_share=self._equal.used_share)
        return num_expected < self._rules.max_groups_outstanding

    @property
    def num_prompts_wanted(self) -> int:
        """How many prompts more would let a full set of leases be granted."""
        most = self._equal.num_to_get(self._rules.max_groups_outstanding)
        return max(0, most - len(self._prompts))

    @property
    def ready(self) -> ReadyGroups:
        """The complete groups that no batch has taken yet."""
        return self._groups.ready

    @property
    def open_groups(self) -> tuple[GroupId, ...]:
        """The groups that still lack results."""
        return tuple(group.group_id for group in self._groups.open)

    @property
    def published(self) -> frozenset[int]:
        """The versions published by this process that may still be of use."""
        return frozenset(self._learner.published)

    def status_of(self, key: SampleKey) -> SampleStatus:
        """Return where a leased sample is."""
        return self._groups.status_of(key)

    def prompt_tokens(self, group_id: GroupId) -> bytes:
        """Return the prompt of an open group, packed, as it was leased."""
        return self._groups.prompt_tokens(group_id)

    def status_for(self, lease: LeaseRecord, key: SampleKey) -> SampleStatus:
        """Return where a sample is, for a result that comes by ``lease``."""
        status = self._groups.status_of(key)
        is_other = key in lease.unsettled and self._groups.judged_for(key) != lease.lease_id
        return SampleStatus.ANSWERED if status is SampleStatus.TAKEN and is_other else status

    def next_late_s(self) -> float | None:
        """Return when the next lease will be late, so that others may be asked."""
        return self._late.next_s()

    # What it is told.

    def add_prompts(self, prompts: Iterable[QueuedPrompt]) -> None:
        """Queue prompts for leasing, in this order."""
        self._prompts.extend(prompts)

    def restore(
        self, group_id: GroupId, prompt_tokens: bytes, rollouts: Sequence[AcceptedRollout | None]
    ) -> Dropped | None:
        """Take up a group that an earlier process left, with the results it had.

        Returns:
            the group, if it turns out to be without signal, and is replaced.
        """
        # Its samples may have been leased before; another lease is another seed.
        version = self.newest_version or 0
        self._groups.add(group_id, prompt_tokens, rollouts, version=version, num_leased=1)
        return self._replaced(group_id)

    def version_published(self, version: PolicyVersion, now_s: float) -> None:
        """From now on, rollouts of ``version`` are welcome."""
        self._learner.version_published(version, now_s, max_staleness=self._rules.max_staleness)

    def grant(self, ask: WorkRequest, now_s: float) -> Lease | NoWork:
        """Lease work to a node, if there is any that it can finish in time."""
        node = self._candidate(ask, now_s)
        if isinstance(node, NoWork):
            return node
        choice = self._chooser.choose(node)
        if isinstance(choice, NoWork):
            return choice
        self._num_leases += 1
        record = self._record(LeaseId(f"lease-{self._num_leases:06d}"), ask, node, choice)
        self._leases.add(record)
        self._late.watch(record)
        self._note_supply(ask.peer)
        if node.pace is not None:
            node.pace.granted_at_s = now_s
        return Lease(
            lease_id=record.lease_id,
            min_version=record.min_version,
            deadline_step=record.deadline_step,
            groups=tuple(
                self._hand_out(group, indices, record) for group, indices in choice.samples
            ),
            sampling=self._rules.sampling,
        )

    def begin_judging(self, lease: LeaseRecord, key: SampleKey) -> None:
        """Reserve an open sample for a result that is being scored; no other is taken meanwhile."""
        self._groups.begin_judging(key, lease.lease_id)

    def cancel_judging(self, key: SampleKey) -> None:
        """Give up a reservation: there will be no verdict."""
        self._groups.cancel_judging(key)

    def accept(
        self, lease: LeaseRecord, key: SampleKey, rollout: AcceptedRollout, now_s: float
    ) -> Accepted:
        """Take the result that :meth:`begin_judging` announced."""
        before = rollout.num_tokens if self._mean_tokens is None else self._mean_tokens
        self._mean_tokens = _KEEP_TOKENS * before + (1 - _KEEP_TOKENS) * rollout.num_tokens
        status = self._groups.accept(key, rollout)
        dropped = self._replaced(key[0]) if status is SampleStatus.OPEN else None
        return Accepted(status, self.settle(lease, key, now_s), dropped)

    def refuse(
        self, lease: LeaseRecord, key: SampleKey, now_s: float, *, is_unscorable: bool = False
    ) -> tuple[Dropped | None, LeaseEnded | None]:
        """Note that a result is no good: others are asked for the sample.

        Only for a sample that is open, or being judged for this very result.

        Args:
            lease: by which it came.
            key: of which sample.
            now_s: the time.
            is_unscorable: whether the task's verifier failed on it.
        """
        dropped = self._groups.refuse(
            key, lease_id=lease.lease_id, peer=lease.peer, is_unscorable=is_unscorable
        )
        self._watch_others(lease, [key])
        return dropped, self.settle(lease, key, now_s)

    def settle(self, lease: LeaseRecord, key: SampleKey, now_s: float) -> LeaseEnded | None:
        """Note that a result came for a sample that needs none any more."""
        ended = self._leases.settle(lease, key, now_s)
        if ended is not None:
            self._over(lease, ended)
        return ended

    def end_lease(
        self, lease: LeaseRecord, state: LeaseState, now_s: float
    ) -> tuple[LeaseEnded, list[Dropped]]:
        """End an active lease before its time; what it lacks is leased to others."""
        ended = self._leases.end(lease, state, now_s)
        self._over(lease, ended)
        released = [
            self._groups.release(key, lease_id=lease.lease_id) for key in sorted(lease.unsettled)
        ]
        self._watch_others(lease, lease.unsettled)
        return ended, [dropped for dropped in released if dropped is not None]

    def node_is_back(self, peer: PeerId, session_id: str) -> list[LeaseRecord]:
        """Give a node its leases back that ended because it seemed to be lost, and was not.

        What others were asked for in the meantime stays with them.
        """
        revived = self._leases.lost_with(peer, session_id)
        for lease in revived:
            self._leases.revive(lease)
            self._late.watch(lease)
            self._note_supply(peer)
            for key in lease.unsettled:
                self._groups.hold_again(key, lease.lease_id)
        return revived

    def form(self, now_s: float) -> Formed:
        """Choose the groups of the next update; without enough of them, the learner waits.

        To be called by the learner as soon as it could go on.
        """
        self._learner.is_free(now_s)
        formed = self._groups.form(
            step=self.next_step,
            groups_per_step=self._rules.groups_per_step,
            max_staleness=self._rules.max_staleness,
        )
        self._learner.is_waiting = formed.batch is None
        return formed

    def take(self, groups: Collection[CompleteGroup]) -> None:
        """Note that an update uses these groups."""
        self._groups.take(groups)

    def advance(self, next_step: int, now_s: float) -> list[Dropped]:
        """Note that ``next_step`` is now the first update without a batch.

        Returns:
            the groups that hold results too old for it.
        """
        self._learner.batch_taken(next_step, now_s, attainable_s=self._attainable_s())
        self._supply.next_step()
        self._groups.num_backups = 0
        self._equal.next_step()
        return self._groups.drop_older_than(
            staleness.oldest_usable_version(next_step, max_staleness=self._rules.max_staleness)
        )

    def drop(self, group_id: GroupId, reason: DropReason) -> Dropped:
        """Give up a group."""
        return self._groups.drop(group_id, reason)

    # Inside.

    def _watch_others(self, lease: LeaseRecord, keys: Iterable[SampleKey]) -> None:
        """Have the leases watched that are now alone at work on what another came to nothing on.

        They may have been late for long: so far there was nothing to ask of others.
        """
        holders = {self._groups.holder_of(key) for key in keys} - {None, lease.lease_id}
        for lease_id in sorted(filter(None, holders)):
            if (other := self._leases.get(lease_id)) is not None:
                self._late.watch(other)

    def _replaced(self, group_id: GroupId) -> Dropped | None:
        """Drop a group that has become complete, if it is to be replaced."""
        group = self._groups.ready.get(group_id)
        if group is None or not self._equal.is_to_be_replaced(group):
            return None
        return self._groups.drop(group_id, DropReason.EQUAL)

    def _candidate(self, ask: WorkRequest, now_s: float) -> Candidate | NoWork:
        if ask.applied_version not in self._learner.published:
            return NoWork(f"version {ask.applied_version} is not one to sample with now")
        if self._leases.num_of_peer(ask.peer) >= self._rules.max_leases_per_node:
            return NoWork(f"{self._rules.max_leases_per_node} leases are in hand already")
        if ask.broadcast_s is not None:
            before_s = self._broadcast_s or ask.broadcast_s
            self._broadcast_s = _KEEP_BROADCAST * before_s + (1 - _KEEP_BROADCAST) * ask.broadcast_s
        pace = self._paces.get(ask.peer)
        num_in_hand = self._leases.num_unsettled_of(ask.peer)
        wait_s = pace.usual_s(num_in_hand) if pace is not None and num_in_hand else 0.0
        version = self._learner.version_at(
            now_s + wait_s, applied=ask.applied_version, broadcast_s=ask.broadcast_s
        )
        use_by = staleness.last_usable_step(version, max_staleness=self._rules.max_staleness)
        if use_by < self.next_step:
            return NoWork(f"version {version} is too old for update {self.next_step}")
        return Candidate(
            peer=ask.peer,
            pace=pace,
            num_in_hand=num_in_hand,
            version=version,
            max_completions=ask.max_completions,
            broadcast_s=(
                ask.broadcast_s if ask.usual_broadcast_s is None else ask.usual_broadcast_s
            ),
            now_s=now_s,
        )

    def _record(
        self, lease_id: LeaseId, ask: WorkRequest, node: Candidate, choice: LeaseChoice
    ) -> LeaseRecord:
        keys = frozenset((g.group_id, index) for g, indices in choice.samples for index in indices)
        in_hand = node.num_in_hand + len(keys)
        each_s = self._paces.median_each_s()
        expires_at_s = node.now_s + self._rules.lease_timeout_s
        return LeaseRecord(
            lease_id=lease_id,
            peer=ask.peer,
            session_id=ask.session_id,
            min_version=node.version,
            deadline_step=staleness.last_usable_step(
                node.version, max_staleness=self._rules.max_staleness
            ),
            granted_at_s=node.now_s,
            expires_at_s=expires_at_s,
            samples=keys,
            unsettled=set(keys),
            num_in_hand=in_hand,
            is_trial=choice.is_trial,
            usual_s=None if node.pace is None else node.pace.usual_s(in_hand),
            late_at_s=late_at_s(
                granted_at_s=node.now_s,
                expires_at_s=expires_at_s,
                slow_s=None if node.pace is None else node.pace.slow_s(in_hand),
                typical_s=None if each_s is None else each_s * in_hand,
                rescue_s=None if each_s is None else each_s * self._rules.group_size,
                deadline_s=self._learner.start_s(choice.use_by, node.now_s),
            ),
        )

    def _hand_out(
        self, group: OpenGroup, indices: Sequence[int], lease: LeaseRecord
    ) -> LeasedGroup:
        self._groups.expect(group, lease.min_version)
        attempts = self._groups.lease(group, indices, lease.lease_id)
        specs = tuple(
            SampleSpec(
                index=index,
                seed=sampling_seed(
                    run_seed=self._rules.run_seed,
                    group_id=group.group_id,
                    index=index,
                    attempt=attempt,
                ),
            )
            for index, attempt in zip(indices, attempts, strict=True)
        )
        return LeasedGroup(group.group_id, group.prompt_tokens, specs)

    def _attainable_s(self) -> float | None:
        """Return the learner's period if it never waits for nodes slower than most."""
        rules, busy_s, each_s = self._rules, self._learner.busy_s, self._paces.median_each_s()
        rollouts_per_s = self._supply.per_s
        if not busy_s or each_s is None or not rollouts_per_s:
            return None
        workload = LearnerLoad(
            rollouts_per_step=self._equal.num_to_get(rules.groups_per_step) * rules.group_size,
            train_s=max(busy_s, MIN_TRAIN_S),
            max_staleness=rules.max_staleness,
            publish_every=rules.publish_every,
        )
        delays = Delays(broadcast_s=self._broadcast_s, rollout_s=each_s * rules.group_size)
        return _SLACK * forecast(workload, delays, rollouts_per_s=rollouts_per_s).period_s

    def _note_supply(self, peer: PeerId) -> None:
        pace = self._paces.get(peer)
        has_work = self._leases.num_of_peer(peer) > 0
        per_s = 0.0 if pace is None else 1 / pace.each_s
        self._supply.set(peer, per_s if has_work else None)

    def _over(self, lease: LeaseRecord, ended: LeaseEnded) -> None:
        is_done = ended.state is LeaseState.DONE
        if lease.num_in_hand and (is_done or ended.state in _TOOK_AT_LEAST):
            self._paces.add(
                lease.peer,
                lease.num_in_hand,
                ended.took_s,
                is_done=is_done,
                is_trial=lease.is_trial,
            )
        self._note_supply(lease.peer)
