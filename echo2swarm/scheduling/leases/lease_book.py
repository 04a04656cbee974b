"""Leases as the learner keeps them, and how the samples' seeds follow from the run's."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
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
    num_in_hand: int = 0
    """Completions that the node had in hand with this lease, of earlier ones too."""
    is_trial: bool = False
    """It is to show whether a node is still too slow."""
    usual_s: float | None = None
    """What it is expected to take, where the node's pace is known."""
    late_at_s: float = float("inf")
    """From when on others may be asked for what it lacks."""
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
        self._by_peer: defaultdict[PeerId, dict[LeaseId, LeaseRecord]] = defaultdict(dict)
        # In the order of what ends them; leases that ended otherwise are skipped when met.
        self._by_expiry: list[tuple[float, LeaseId]] = []
        self._by_deadline: list[tuple[int, LeaseId]] = []
        self._num_unsettled = 0

    @property
    def num_unsettled(self) -> int:
        """Completions that are leased and not judged yet."""
        return self._num_unsettled

    @property
    def active(self) -> list[LeaseRecord]:
        """The active leases."""
        return list(self._active.values())

    def add(self, lease: LeaseRecord) -> None:
        """Enter a lease."""
        self._active[lease.lease_id] = lease
        self._by_peer[lease.peer][lease.lease_id] = lease
        self._num_unsettled += len(lease.unsettled)
        heappush(self._by_expiry, (lease.expires_at_s, lease.lease_id))
        heappush(self._by_deadline, (lease.deadline_step, lease.lease_id))

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
        return list(self._by_peer[peer].values()) if peer in self._by_peer else []

    def num_of_peer(self, peer: PeerId) -> int:
        """Return how many active leases one node has."""
        return len(self._by_peer[peer]) if peer in self._by_peer else 0

    def num_unsettled_of(self, peer: PeerId) -> int:
        """Return how many completions one node has in hand."""
        return sum(len(lease.unsettled) for lease in self.of_peer(peer))

    def lost_with(self, peer: PeerId, session_id: str) -> list[LeaseRecord]:
        """Return the leases that ended because this process of a node seemed to be gone."""
        return [
            lease
            for lease in self._ended.values()
            if lease.peer == peer
            and lease.session_id == session_id
            and lease.state is LeaseState.NODE_LOST
        ]

    def revive(self, lease: LeaseRecord) -> None:
        """Make a lease active again that ended too early."""
        del self._ended[lease.lease_id]
        lease.state = LeaseState.ACTIVE
        self.add(lease)

    def next_expiry_s(self) -> float | None:
        """Return when the next lease times out."""
        while self._by_expiry and self._by_expiry[0][1] not in self._active:
            heappop(self._by_expiry)
        return self._by_expiry[0][0] if self._by_expiry else None

    def overdue(self, *, now_s: float, next_step: int) -> list[tuple[LeaseRecord, LeaseState]]:
        """Return the active leases whose time or usable steps are over; each of them once."""
        found: dict[LeaseId, tuple[LeaseRecord, LeaseState]] = {}
        while self._by_expiry and self._by_expiry[0][0] <= now_s:
            lease = self._active.get(heappop(self._by_expiry)[1])
            if lease is not None:
                found[lease.lease_id] = (lease, LeaseState.TIMED_OUT)
        while self._by_deadline and self._by_deadline[0][0] < next_step:
            lease = self._active.get(heappop(self._by_deadline)[1])
            if lease is not None:
                found.setdefault(lease.lease_id, (lease, LeaseState.TOO_OLD))
        return list(found.values())

    def settle(self, lease: LeaseRecord, key: SampleKey, now_s: float) -> LeaseEnded | None:
        """Note that a sample was judged; returns the end of the lease if it was the last."""
        if key in lease.unsettled:
            lease.unsettled.remove(key)
            self._num_unsettled -= lease.state is LeaseState.ACTIVE
        if lease.unsettled or lease.state is not LeaseState.ACTIVE:
            return None
        return self.end(lease, LeaseState.DONE, now_s)

    def end(self, lease: LeaseRecord, state: LeaseState, now_s: float) -> LeaseEnded:
        """End an active lease."""
        lease.state = state
        del self._active[lease.lease_id]
        of_peer = self._by_peer[lease.peer]
        del of_peer[lease.lease_id]
        if not of_peer:
            del self._by_peer[lease.peer]
        self._num_unsettled -= len(lease.unsettled)
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
