"""Leases as the learner keeps them, and how the samples' seeds follow from the run's."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from protocols.ids import GroupId, LeaseId, PeerId, PolicyVersion

MAX_REMEMBERED: Final = 4096
"""Ended leases that are remembered, to judge late results by."""

SampleKey = tuple[GroupId, int]
"""A group and the place in it."""


class LeaseState(StrEnum):
    """What became of a lease; the value is what the ledger holds."""

    ACTIVE = "active"
    DONE = "done"
    """Everything was submitted and judged."""
    TIMED_OUT = "timed_out"
    TOO_OLD = "too_old"
    """The learner is past its deadline step."""
    RETURNED = "returned"
    RESTARTED = "restarted"
    """The learner was; what it had leased counts for nothing."""
    NODE_LOST = "node_lost"
    """The node fell silent, or came back as a new process."""


@dataclass(slots=True, kw_only=True)
class LeaseRecord:
    """One lease and how far it is."""

    lease_id: LeaseId
    peer: PeerId
    session_id: str
    min_version: PolicyVersion
    deadline_step: int
    granted_at_s: float
    expires_at_s: float
    samples: frozenset[SampleKey]
    unsettled: set[SampleKey] = field(default_factory=set)
    """Not submitted and judged yet."""
    state: LeaseState = LeaseState.ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnded:
    """A lease is over; what it left undone may be leased to others."""

    lease_id: LeaseId
    peer: PeerId
    state: LeaseState
    num_unfinished: int
    took_s: float


class LeaseBook:
    """All active leases, and those that ended not long ago."""

    def __init__(self) -> None:
        self._active: dict[LeaseId, LeaseRecord] = {}
        self._ended: dict[LeaseId, LeaseRecord] = {}

    @property
    def num_unsettled(self) -> int:
        """Completions that are leased and not judged yet."""
        return sum(len(lease.unsettled) for lease in self._active.values())

    @property
    def active(self) -> list[LeaseRecord]:
        """The active leases."""
        return list(self._active.values())

    def add(self, lease: LeaseRecord) -> None:
        """Enter a lease."""
        self._active[lease.lease_id] = lease

    def remember(self, lease: LeaseRecord) -> None:
        """Enter a lease that has ended; its results may still come."""
        self._ended[lease.lease_id] = lease
        while len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def get(self, lease_id: str) -> LeaseRecord | None:
        """Return a lease, active or ended not long ago."""
        key = LeaseId(lease_id)
        return self._active.get(key) or self._ended.get(key)

    def of_peer(self, peer: PeerId) -> list[LeaseRecord]:
        """Return the active leases of one node."""
        return [lease for lease in self._active.values() if lease.peer == peer]

    def next_expiry_s(self) -> float | None:
        """Return when the next lease times out."""
        return min((lease.expires_at_s for lease in self._active.values()), default=None)

    def overdue(self, *, now_s: float, next_step: int) -> list[tuple[LeaseRecord, LeaseState]]:
        """Return the active leases whose time or usable steps are over."""
        found = []
        for lease in self._active.values():
            if lease.expires_at_s <= now_s:
                found.append((lease, LeaseState.TIMED_OUT))
            elif lease.deadline_step < next_step:
                found.append((lease, LeaseState.TOO_OLD))
        return found

    def settle(self, lease: LeaseRecord, key: SampleKey, now_s: float) -> LeaseEnded | None:
        """Note that a sample was judged; returns the end of the lease if it was the last."""
        lease.unsettled.discard(key)
        if lease.unsettled or lease.state is not LeaseState.ACTIVE:
            return None
        return self.end(lease, LeaseState.DONE, now_s)

    def end(self, lease: LeaseRecord, state: LeaseState, now_s: float) -> LeaseEnded:
        """End an active lease."""
        lease.state = state
        del self._active[lease.lease_id]
        self.remember(lease)
        return LeaseEnded(
            lease_id=lease.lease_id,
            peer=lease.peer,
            state=state,
            num_unfinished=len(lease.unsettled),
            took_s=now_s - lease.granted_at_s,
        )


def sampling_seed(*, run_seed: int, group_id: int, index: int, attempt: int) -> int:
    """Return the seed of one sample: the same for the same run, another for each attempt."""
    text = f"{run_seed}/{group_id}/{index}/{attempt}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
