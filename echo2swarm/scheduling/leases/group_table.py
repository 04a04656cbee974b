"""Every group that was leased and is not trained on yet, without I/O.

The life of a group::

    OPEN --all samples accepted--> READY --taken into a batch--> gone (trained)
     |                               |
     +--too old, or tried too often--+--> gone (dropped, with a reason)

A sample of an open group is missing, leased (to one node, or to a second one as well
where the first is late), being judged, or accepted.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from echo2swarm.scheduling.leases.batcher import Formed, ReadyGroups
from echo2swarm.scheduling.leases.groups import AcceptedRollout, CompleteGroup, DropReason
from echo2swarm.scheduling.leases.lease_book import SampleKey
from echo2swarm.scheduling.leases.open_group import Dropped, OpenGroup, Slot
from protocols.ids import GroupId, LeaseId, PeerId

MAX_REMEMBERED: Final = 4096
"""Closed groups that are remembered, to judge late results by."""
MAX_UNSCORABLE: Final = 3
"""Results of one sample that the task's verifier fails on, after which its group is given up."""


class SampleStatus(Enum):
    """Where a sample is, for whoever submits a result of it."""

    OPEN = "open"
    """It lacks a result."""
    TAKEN = "taken"
    """It has one, or one is being judged."""
    ANSWERED = "answered"
    """It has one of another lease: somebody else was asked, too, and was faster."""
    STALE = "stale"
    """Its group was dropped because it became too old."""
    CLOSED = "closed"
    """Its group was dropped for another reason."""


class GroupTable:
    """Open and ready groups.

    Args:
        max_attempts: how often a lease of one sample may fail before its group is given up.
    """

    def __init__(self, *, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._open: dict[GroupId, OpenGroup] = {}
        self._ready = ReadyGroups()
        self._closed: dict[GroupId, DropReason | None] = {}
        self._by_version: dict[int, dict[GroupId, OpenGroup]] = {}
        """The open groups, by the version that their staleness counts from."""
        self._short: dict[int, dict[GroupId, OpenGroup]] = {}
        """Those of them with samples that nobody is at work on."""
        self._num_ready_by_version: dict[int, int] = {}
        self.num_backups = 0
        """Samples that a second node was asked for since the last update was formed."""

    def __len__(self) -> int:
        """Return how many groups are open or ready."""
        return len(self._open) + len(self._ready)

    @property
    def open(self) -> tuple[OpenGroup, ...]:
        """The groups that lack results, in the order in which they were opened."""
        return tuple(self._open.values())

    @property
    def ready(self) -> ReadyGroups:
        """The complete groups, in the order in which they became so."""
        return self._ready

    def get_open(self, group_id: GroupId) -> OpenGroup | None:
        """Return a group, if it lacks results."""
        return self._open.get(group_id)

    def prompt_tokens(self, group_id: GroupId) -> bytes:
        """Return the prompt of an open group, packed."""
        return self._open[group_id].prompt_tokens

    def num_expected(self, *, used_share: float) -> float:
        """Return how many groups there are, or will be, if that share of the open ones is used."""
        return used_share * len(self._open) + len(self._ready)

    def num_up_to(self, version: int, *, used_share: float = 1.0) -> float:
        """Return how many groups count as of ``version`` or an older one: used before others.

        Args:
            version: as of which.
            used_share: of the open ones; others will be dropped.
        """
        num = 0.0
        for v, groups in self._by_version.items():
            if v <= version:
                num += used_share * len(groups)
        for v, num_ready in self._num_ready_by_version.items():
            if v <= version:
                num += num_ready
        return num

    def oldest_open(self) -> Iterator[OpenGroup]:
        """Yield the open groups, the oldest version first."""
        for version in sorted(self._by_version):
            yield from self._by_version[version].values()

    def with_missing(self) -> Iterator[OpenGroup]:
        """Yield the groups with samples that nobody is at work on, the oldest version first."""
        for version in sorted(self._short):
            yield from self._short[version].values()

    # Opening and closing.

    def add(
        self,
        group_id: GroupId,
        prompt_tokens: bytes,
        rollouts: Sequence[AcceptedRollout | None],
        *,
        version: int = 0,
        num_leased: int = 0,
    ) -> OpenGroup:
        """Open a group with the results it has so far; it is ready at once if none lacks.

        Args:
            group_id: its prompt's number.
            prompt_tokens: packed.
            rollouts: what there is already.
            version: which version it will be sampled with, unless results tell otherwise.
            num_leased: how often its samples were leased before.
        """
        slots = [Slot(num_leased=num_leased, rollout=rollout) for rollout in rollouts]
        group = OpenGroup(group_id=group_id, prompt_tokens=prompt_tokens, slots=slots)
        group.version = version if group.oldest_version is None else group.oldest_version
        self._open[group_id] = group
        self._by_version.setdefault(group.version, {})[group_id] = group
        self._sort_in(group)
        self._complete_if_whole(group)
        return group

    def take(self, groups: Iterable[CompleteGroup]) -> None:
        """Note that an update uses these ready groups."""
        for group in groups:
            if not self._remove_ready(group.group_id):
                raise KeyError(group.group_id)
            self._close(group.group_id, None)

    def form(self, *, step: int, groups_per_step: int, max_staleness: int) -> Formed:
        """Choose the groups of the update that starts from version ``step``."""
        return self._ready.form(
            step=step, groups_per_step=groups_per_step, max_staleness=max_staleness
        )

    def drop(self, group_id: GroupId, reason: DropReason) -> Dropped:
        """Give up a group."""
        if (group := self._open.get(group_id)) is not None:
            self._remove_open(group)
        self._remove_ready(group_id)
        self._close(group_id, reason)
        return Dropped(group_id, reason)

    def drop_older_than(self, version: int) -> list[Dropped]:
        """Give up the groups with a result of a version before ``version``."""
        old = [g for v in sorted(self._by_version) if v < version for g in self.of_version(v)]
        doomed = [group.group_id for group in old if group.oldest_version is not None]
        doomed += [group.group_id for group in self._ready.older_than(version)]
        for group in old:
            if group.oldest_version is None:
                self._move(group, version)
        return [self.drop(group_id, DropReason.STALE) for group_id in doomed]

    def of_version(self, version: int) -> list[OpenGroup]:
        """Return the open groups that count as of ``version``."""
        return list(self._by_version.get(version, {}).values())

    # Leasing and results.

    def lease(self, group: OpenGroup, indices: Sequence[int], lease_id: LeaseId) -> list[int]:
        """Note who is at work on samples; returns how often each of them was leased before."""
        attempts = []
        for index in indices:
            slot = group.slots[index]
            if slot.is_missing:
                slot.holder = lease_id
                group.num_missing -= 1
            else:
                slot.backup = lease_id
                self.num_backups += 1
            attempts.append(slot.num_leased)
            slot.num_leased += 1
        self._sort_in(group)
        return attempts

    def expect(self, group: OpenGroup, version: int) -> None:
        """Note which version a group will be sampled with of which nothing is sampled yet."""
        if group.num_missing == len(group.slots):
            self._move(group, version)

    def hold_again(self, key: SampleKey, lease_id: LeaseId) -> None:
        """Note that whoever lost a sample is at work on it after all, if nobody else is."""
        group = self._open.get(key[0])
        if group is not None and group.slots[key[1]].is_missing:
            group.slots[key[1]].holder = lease_id
            group.num_missing -= 1
            self._sort_in(group)

    def status_of(self, key: SampleKey) -> SampleStatus:
        """Return where a sample of a group that was once open is."""
        group_id, index = key
        if (group := self._open.get(group_id)) is not None:
            slot = group.slots[index]
            is_taken = slot.rollout is not None or slot.judging is not None
            return SampleStatus.TAKEN if is_taken else SampleStatus.OPEN
        reason = self._closed.get(group_id)
        if reason is None or reason is DropReason.EQUAL:
            return SampleStatus.TAKEN
        return SampleStatus.STALE if reason is DropReason.STALE else SampleStatus.CLOSED

    def holder_of(self, key: SampleKey) -> LeaseId | None:
        """Return which lease is at work on a sample, the first of them if there are two."""
        group = self._open.get(key[0])
        return None if group is None else group.slots[key[1]].holder

    def judged_for(self, key: SampleKey) -> LeaseId | None:
        """Return whose result of a sample is being judged."""
        group = self._open.get(key[0])
        return None if group is None else group.slots[key[1]].judging

    def begin_judging(self, key: SampleKey, lease_id: LeaseId) -> None:
        """Reserve an open sample for a result that is being scored."""
        group = self._open[key[0]]
        slot = group.slots[key[1]]
        self._change(group, slot, judging=lease_id)

    def cancel_judging(self, key: SampleKey) -> None:
        """Give up a reservation."""
        if (group := self._open.get(key[0])) is not None:
            self._change(group, group.slots[key[1]], judging=None)

    def accept(self, key: SampleKey, rollout: AcceptedRollout) -> SampleStatus:
        """Take the result that :meth:`begin_judging` announced.

        Returns:
            ``OPEN`` if it was taken, else what became of its group in the meantime.
        """
        group = self._open.get(key[0])
        if group is None:
            return self.status_of(key)
        slot = group.slots[key[1]]
        was_missing = slot.is_missing
        slot.judging = slot.holder = slot.backup = None
        slot.rollout = rollout
        group.num_missing -= was_missing
        group.took(rollout)
        self._sort_in(group)
        if rollout.version < group.version or group.num_accepted == 1:
            self._move(group, group.oldest_version or 0)
        self._complete_if_whole(group)
        return SampleStatus.OPEN

    def refuse(
        self, key: SampleKey, *, lease_id: LeaseId, peer: PeerId, is_unscorable: bool = False
    ) -> Dropped | None:
        """Note that a result of an open sample, or the one being judged, is no good.

        If the task's verifier fails on it again and again, it fails on the prompt: its group is
        dropped, or prompts like it would in time take all the room there is.
        """
        group = self._open.get(key[0])
        if group is None:
            return None
        group.avoid.add(peer)
        slot = group.slots[key[1]]
        self._change(group, slot, judging=None)
        slot.num_unscorable += is_unscorable
        if slot.num_unscorable >= MAX_UNSCORABLE:
            return self.drop(group.group_id, DropReason.GAVE_UP)
        return self.release(key, lease_id=lease_id)

    def release(self, key: SampleKey, *, lease_id: LeaseId) -> Dropped | None:
        """Note that nothing will come of a sample for a lease, if it is at work on it.

        Unless another one is at work on it, too, it is missing; too often, and its group is
        dropped.
        """
        group = self._open.get(key[0])
        if group is None:
            return None
        slot = group.slots[key[1]]
        if slot.backup == lease_id:
            slot.backup = None
        elif slot.holder == lease_id:
            was_missing = slot.is_missing
            slot.holder = slot.backup
            slot.backup = None
            group.num_missing += slot.is_missing - was_missing
            self._sort_in(group)
        else:
            return None
        slot.num_failed += 1
        if slot.num_failed < self._max_attempts:
            return None
        return self.drop(group.group_id, DropReason.GAVE_UP)

    # Inside.

    def _change(self, group: OpenGroup, slot: Slot, *, judging: LeaseId | None) -> None:
        was_missing = slot.is_missing
        slot.judging = judging
        group.num_missing += slot.is_missing - was_missing
        self._sort_in(group)

    def _sort_in(self, group: OpenGroup) -> None:
        """Keep the index of groups with missing samples true."""
        short = self._short.get(group.version)
        if group.num_missing:
            if short is None:
                short = self._short[group.version] = {}
            short.setdefault(group.group_id, group)
        elif short is not None and short.pop(group.group_id, None) is not None and not short:
            del self._short[group.version]

    def _move(self, group: OpenGroup, version: int) -> None:
        """Let a group's staleness count from another version."""
        if version == group.version:
            return
        self._unlist(group)
        group.version = version
        self._by_version.setdefault(version, {})[group.group_id] = group
        self._sort_in(group)

    def _unlist(self, group: OpenGroup) -> None:
        for index in (self._by_version, self._short):
            listed = index.get(group.version, {})
            if listed.pop(group.group_id, None) is not None and not listed:
                del index[group.version]

    def _remove_open(self, group: OpenGroup) -> None:
        del self._open[group.group_id]
        self._unlist(group)

    def _remove_ready(self, group_id: GroupId) -> bool:
        group = self._ready.remove(group_id)
        if group is None:
            return False
        version = group.oldest_version
        self._num_ready_by_version[version] -= 1
        if not self._num_ready_by_version[version]:
            del self._num_ready_by_version[version]
        return True

    def _complete_if_whole(self, group: OpenGroup) -> None:
        if group.num_accepted < len(group.slots):
            return
        rollouts = tuple(slot.rollout for slot in group.slots if slot.rollout is not None)
        self._remove_open(group)
        complete = CompleteGroup(
            group_id=group.group_id, prompt_tokens=group.prompt_tokens, rollouts=rollouts
        )
        self._ready.add(complete)
        version = complete.oldest_version
        self._num_ready_by_version[version] = self._num_ready_by_version.get(version, 0) + 1

    def _close(self, group_id: GroupId, reason: DropReason | None) -> None:
        self._closed[group_id] = reason
        while len(self._closed) > MAX_REMEMBERED:
            del self._closed[next(iter(self._closed))]
