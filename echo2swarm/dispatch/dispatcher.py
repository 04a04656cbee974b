"""Dispatch, without I/O: who samples what, and what became of it.

A lease that ends early, for whatever cause, makes its unaccepted samples missing, and they
are leased again, one by one if need be. A late result of an ended lease is still taken if
its sample is yet without one: nothing is taken twice.

The learner paces: it leases only what is expected to be fresh when its turn comes, see
:mod:`echo2swarm.freshness`. The caller passes the time, and performs what is returned.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from echo2swarm import freshness
from echo2swarm.dispatch.group_table import Dropped, GroupTable, OpenGroup, SampleStatus
from echo2swarm.dispatch.groups import AcceptedRollout, CompleteGroup, DropReason, Prompt
from echo2swarm.dispatch.lease_rules import Ask, Cart, DispatchRules, NoWork
from echo2swarm.dispatch.leasing import (
    LeaseBook,
    LeaseEnded,
    LeaseRecord,
    LeaseState,
    SampleKey,
    sampling_seed,
)
from protocols.ids import GroupId, LeaseId, PolicyVersion
from protocols.leases import MAX_GROUPS, Lease, LeasedGroup, SampleSpec


class Dispatcher:
    """The state of all leases and open groups of a run.

    Args:
        rules: from the configuration.
        num_leases: granted by earlier processes of the run; ids go on from there.
        next_step: the first update that needs a batch.
    """

    def __init__(self, rules: DispatchRules, *, num_leases: int = 0, next_step: int = 0) -> None:
        self._rules = rules
        self._next_step = next_step
        self._num_leases = num_leases
        self._prompts: deque[Prompt] = deque()
        self._groups = GroupTable(max_attempts=rules.max_attempts)
        self._leases = LeaseBook()
        self._published: set[PolicyVersion] = set()

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
    def next_step(self) -> int:
        """The next update that has no batch yet."""
        return self._next_step

    @property
    def newest_version(self) -> PolicyVersion | None:
        """The newest version published."""
        return max(self._published, default=None)

    @property
    def num_outstanding(self) -> int:
        """Groups in flight or buffered."""
        return len(self._groups)

    @property
    def num_prompts_wanted(self) -> int:
        """How many prompts more would let a full set of leases be granted."""
        return max(0, self._rules.max_groups_outstanding - len(self._prompts))

    @property
    def ready(self) -> tuple[CompleteGroup, ...]:
        """The complete groups that no batch has taken yet."""
        return self._groups.ready

    @property
    def open_groups(self) -> tuple[GroupId, ...]:
        """The groups that still lack results."""
        return tuple(group.group_id for group in self._groups.open)

    @property
    def published(self) -> frozenset[int]:
        """The versions published by this process that may still be of use."""
        return frozenset(self._published)

    def status_of(self, key: SampleKey) -> SampleStatus:
        """Return where a leased sample is."""
        return self._groups.status_of(key)

    # What it is told.

    def add_prompts(self, prompts: Iterable[Prompt]) -> None:
        """Queue prompts for leasing, in this order."""
        self._prompts.extend(prompts)

    def restore(
        self, group_id: GroupId, prompt_tokens: bytes, rollouts: Sequence[AcceptedRollout | None]
    ) -> None:
        """Take up a group that an earlier process left, with the results it had."""
        # Its samples may have been leased before; another attempt is another seed.
        self._groups.add(group_id, prompt_tokens, rollouts, attempt=1)

    def version_published(self, version: PolicyVersion) -> None:
        """From now on, rollouts of ``version`` are welcome."""
        oldest = freshness.oldest_usable_version(
            self._next_step, max_staleness=self._rules.max_staleness
        )
        newest = max(self._published | {version})
        self._published = {v for v in self._published | {version} if v >= oldest or v == newest}

    def grant(self, ask: Ask, now_s: float) -> Lease | NoWork:
        """Lease work to a node, if there is any that it can finish in time."""
        if ask.applied_version not in self._published:
            return NoWork(f"version {ask.applied_version} is not one to sample with now")
        if len(self._leases.of_peer(ask.peer)) >= self._rules.max_leases_per_node:
            return NoWork(f"{self._rules.max_leases_per_node} leases are in hand already")
        if not self._is_usable_at(ask.applied_version, self._next_step):
            return NoWork(f"version {ask.applied_version} is too old for update {self._next_step}")
        wanted = self._choose(ask)
        if not wanted:
            return NoWork("as much work is in flight as can be used in time")
        self._num_leases += 1
        lease_id = LeaseId(f"lease-{self._num_leases:06d}")
        keys = frozenset((group.group_id, index) for group, indices in wanted for index in indices)
        record = LeaseRecord(
            lease_id=lease_id,
            peer=ask.peer,
            session_id=ask.session_id,
            min_version=ask.applied_version,
            deadline_step=freshness.last_usable_step(
                ask.applied_version, max_staleness=self._rules.max_staleness
            ),
            granted_at_s=now_s,
            expires_at_s=now_s + self._rules.lease_timeout_s,
            samples=keys,
            unsettled=set(keys),
        )
        self._leases.add(record)
        return Lease(
            lease_id=lease_id,
            min_version=record.min_version,
            deadline_step=record.deadline_step,
            groups=tuple(self._hand_out(group, indices, lease_id) for group, indices in wanted),
            sampling=self._rules.sampling,
        )

    def begin_judging(self, key: SampleKey) -> None:
        """Reserve an open sample for a result that is being scored; no other is taken meanwhile."""
        self._groups.begin_judging(key)

    def cancel_judging(self, key: SampleKey) -> None:
        """Give up a reservation: there will be no verdict."""
        self._groups.cancel_judging(key)

    def accept(
        self, lease: LeaseRecord, key: SampleKey, rollout: AcceptedRollout, now_s: float
    ) -> tuple[SampleStatus, LeaseEnded | None]:
        """Take the result that :meth:`begin_judging` announced.

        Returns:
            ``OPEN`` if it was taken, or what became of its group while it was judged; and
            the end of the lease, if this was its last result.
        """
        return self._groups.accept(key, rollout), self._leases.settle(lease, key, now_s)

    def refuse(
        self, lease: LeaseRecord, key: SampleKey, now_s: float
    ) -> tuple[Dropped | None, LeaseEnded | None]:
        """Note that a result is no good: others are asked for the sample.

        Only for a sample that is open, or being judged for this very result.
        """
        dropped = self._groups.refuse(key, lease_id=lease.lease_id, peer=lease.peer)
        return dropped, self._leases.settle(lease, key, now_s)

    def settle(self, lease: LeaseRecord, key: SampleKey, now_s: float) -> LeaseEnded | None:
        """Note that a result came for a sample that needs none any more."""
        return self._leases.settle(lease, key, now_s)

    def end_lease(
        self, lease: LeaseRecord, state: LeaseState, now_s: float
    ) -> tuple[LeaseEnded, list[Dropped]]:
        """End an active lease before its time; what it lacks is leased to others."""
        ended = self._leases.end(lease, state, now_s)
        released = [
            self._groups.release(key, lease_id=lease.lease_id) for key in sorted(lease.unsettled)
        ]
        return ended, [dropped for dropped in released if dropped is not None]

    def take(self, groups: Collection[CompleteGroup]) -> None:
        """Note that an update uses these groups."""
        self._groups.take(groups)

    def advance(self, next_step: int) -> list[Dropped]:
        """Note that ``next_step`` is now the first update without a batch.

        Returns:
            the groups that hold results too old for it.
        """
        self._next_step = next_step
        return self._groups.drop_older_than(
            freshness.oldest_usable_version(next_step, max_staleness=self._rules.max_staleness)
        )

    def drop(self, group_id: GroupId, reason: DropReason) -> Dropped:
        """Give up a group."""
        return self._groups.drop(group_id, reason)

    # Inside.

    def _is_usable_at(self, version: int, use_step: int) -> bool:
        return freshness.can_be_fresh(
            version=version, use_step=use_step, max_staleness=self._rules.max_staleness
        )

    def _choose(self, ask: Ask) -> list[tuple[OpenGroup, list[int]]]:
        """Pick samples: those given back first, then new prompts, then what this node failed on."""
        cart = Cart(
            max_groups=min(self._rules.lease_prompts, MAX_GROUPS),
            max_completions=ask.max_completions,
        )
        given_back = [group for group in self._groups.open if group.missing]
        for group in given_back:
            if ask.peer not in group.avoid:
                cart.add(group)
        while self._prompts and self._may_open_group(ask):
            prompt = self._prompts[0]
            if not cart.has_room_for(len(prompt.tokens), self._rules.group_size):
                break
            self._prompts.popleft()
            samples = [None] * self._rules.group_size
            cart.add(self._groups.add(GroupId(prompt.index), prompt.tokens, samples))
        for group in given_back:
            if ask.peer in group.avoid:
                cart.add(group)
        return cart.chosen

    def _may_open_group(self, ask: Ask) -> bool:
        if self.num_outstanding >= self._rules.max_groups_outstanding:
            return False
        use_step = freshness.expected_use_step(
            next_step=self._next_step,
            groups_ahead=self.num_outstanding,
            groups_per_step=self._rules.groups_per_step,
            rollout_s=ask.rollout_s,
            step_s=ask.step_s,
        )
        is_needed = use_step < self._rules.num_steps
        return is_needed and self._is_usable_at(ask.applied_version, use_step)

    def _hand_out(self, group: OpenGroup, indices: Sequence[int], lease_id: LeaseId) -> LeasedGroup:
        specs = []
        for index in indices:
            slot = group.slots[index]
            slot.holder = lease_id
            seed = sampling_seed(
                run_seed=self._rules.run_seed,
                group_id=group.group_id,
                index=index,
                attempt=slot.attempt,
            )
            specs.append(SampleSpec(index=index, seed=seed))
        return LeasedGroup(group.group_id, group.prompt_tokens, tuple(specs))
