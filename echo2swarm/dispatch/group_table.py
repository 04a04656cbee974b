"""Every group that was leased and is not trained on yet, without I/O.

The life of a group::

    OPEN --all samples accepted--> READY --taken into a batch--> gone (trained)
     |                               |
     +--too old, or tried too often--+--> gone (dropped, with a reason)

A sample of an open group is missing, leased, being judged, or accepted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from echo2swarm.dispatch.groups import AcceptedRollout, CompleteGroup, DropReason
from echo2swarm.dispatch.leasing import SampleKey
from protocols.ids import GroupId, LeaseId, PeerId

MAX_REMEMBERED: Final = 4096
"""Closed groups that are remembered, to judge late results by."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group that will never be trained on."""

    group_id: GroupId
    reason: DropReason


class SampleStatus(Enum):
    """Where a sample is, for whoever submits a result of it."""

    OPEN = "open"
    """It lacks a result."""
    TAKEN = "taken"
    """It has one, or one is being judged."""
    STALE = "stale"
    """Its group was dropped because it became too old."""
    CLOSED = "closed"
    """Its group was dropped for another reason."""


@dataclass(slots=True)
class Slot:
    """The place of one completion in its group."""

    attempt: int = 0
    holder: LeaseId | None = None
    is_being_judged: bool = False
    rollout: AcceptedRollout | None = None

    @property
    def is_missing(self) -> bool:
        """Whether nobody is at work on it."""
        return self.holder is None and self.rollout is None and not self.is_being_judged


@dataclass(slots=True, kw_only=True)
class OpenGroup:
    """A group that lacks results."""

    group_id: GroupId
    prompt_tokens: bytes
    slots: list[Slot]
    avoid: set[PeerId] = field(default_factory=set)
    """Nodes that failed on it; others are asked first."""

    @property
    def missing(self) -> list[int]:
        """The places nobody is at work on."""
        return [index for index, slot in enumerate(self.slots) if slot.is_missing]

    @property
    def oldest_version(self) -> int | None:
        """Of the results it has."""
        return min((s.rollout.version for s in self.slots if s.rollout), default=None)


class GroupTable:
    """Open and ready groups.

    Args:
        max_attempts: how often one sample is leased before its group is given up.
    """

    def __init__(self, *, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._open: dict[GroupId, OpenGroup] = {}
        self._ready: dict[GroupId, CompleteGroup] = {}
        self._closed: dict[GroupId, DropReason | None] = {}

    def __len__(self) -> int:
        """Return how many groups are open or ready."""
        return len(self._open) + len(self._ready)

    @property
    def open(self) -> tuple[OpenGroup, ...]:
        """The groups that lack results, oldest first."""
        return tuple(self._open.values())

    @property
    def ready(self) -> tuple[CompleteGroup, ...]:
        """The complete groups, in the order in which they became so."""
        return tuple(self._ready.values())

    def add(
        self,
        group_id: GroupId,
        prompt_tokens: bytes,
        rollouts: Sequence[AcceptedRollout | None],
        *,
        attempt: int = 0,
    ) -> OpenGroup:
        """Open a group with the results it has so far; it is ready at once if none lacks."""
        slots = [Slot(attempt=attempt, rollout=rollout) for rollout in rollouts]
        group = OpenGroup(group_id=group_id, prompt_tokens=prompt_tokens, slots=slots)
        self._open[group_id] = group
        self._complete_if_whole(group)
        return group

    def status_of(self, key: SampleKey) -> SampleStatus:
        """Return where a sample of a group that was once open is."""
        group_id, index = key
        if (group := self._open.get(group_id)) is not None:
            slot = group.slots[index]
            is_taken = slot.rollout is not None or slot.is_being_judged
            return SampleStatus.TAKEN if is_taken else SampleStatus.OPEN
        reason = self._closed.get(group_id)
        if reason is None:
            return SampleStatus.TAKEN
        return SampleStatus.STALE if reason is DropReason.STALE else SampleStatus.CLOSED

    def begin_judging(self, key: SampleKey) -> None:
        """Reserve an open sample for a result that is being scored."""
        self._open[key[0]].slots[key[1]].is_being_judged = True

    def cancel_judging(self, key: SampleKey) -> None:
        """Give up a reservation."""
        if (group := self._open.get(key[0])) is not None:
            group.slots[key[1]].is_being_judged = False

    def accept(self, key: SampleKey, rollout: AcceptedRollout) -> SampleStatus:
        """Take the result that :meth:`begin_judging` announced.

        Returns:
            ``OPEN`` if it was taken, else what became of its group in the meantime.
        """
        group = self._open.get(key[0])
        if group is None:
            return self.status_of(key)
        slot = group.slots[key[1]]
        slot.is_being_judged, slot.holder, slot.rollout = False, None, rollout
        self._complete_if_whole(group)
        return SampleStatus.OPEN

    def refuse(self, key: SampleKey, *, lease_id: LeaseId, peer: PeerId) -> Dropped | None:
        """Note that a result of an open sample, or the one being judged, is no good."""
        group = self._open.get(key[0])
        if group is None:
            return None
        group.avoid.add(peer)
        group.slots[key[1]].is_being_judged = False
        return self.release(key, lease_id=lease_id)

    def release(self, key: SampleKey, *, lease_id: LeaseId) -> Dropped | None:
        """Make a sample missing if ``lease_id`` holds it; too often, and its group is dropped."""
        group = self._open.get(key[0])
        if group is None or group.slots[key[1]].holder != lease_id:
            return None
        slot = group.slots[key[1]]
        slot.holder = None
        slot.attempt += 1
        if slot.attempt < self._max_attempts:
            return None
        return self.drop(group.group_id, DropReason.GAVE_UP)

    def take(self, groups: Iterable[CompleteGroup]) -> None:
        """Note that an update uses these ready groups."""
        for group in groups:
            del self._ready[group.group_id]
            self._close(group.group_id, None)

    def drop(self, group_id: GroupId, reason: DropReason) -> Dropped:
        """Give up a group."""
        self._open.pop(group_id, None)
        self._ready.pop(group_id, None)
        self._close(group_id, reason)
        return Dropped(group_id, reason)

    def drop_older_than(self, version: int) -> list[Dropped]:
        """Give up the groups with a result of a version before ``version``."""
        groups: list[OpenGroup | CompleteGroup] = [*self._open.values(), *self._ready.values()]
        doomed = [
            group.group_id
            for group in groups
            if group.oldest_version is not None and group.oldest_version < version
        ]
        return [self.drop(group_id, DropReason.STALE) for group_id in doomed]

    def _complete_if_whole(self, group: OpenGroup) -> None:
        rollouts = tuple(slot.rollout for slot in group.slots if slot.rollout is not None)
        if len(rollouts) == len(group.slots):
            del self._open[group.group_id]
            self._ready[group.group_id] = CompleteGroup(
                group_id=group.group_id, prompt_tokens=group.prompt_tokens, rollouts=rollouts
            )

    def _close(self, group_id: GroupId, reason: DropReason | None) -> None:
        self._closed[group_id] = reason
        while len(self._closed) > MAX_REMEMBERED:
            del self._closed[next(iter(self._closed))]
