"""Leases that take so long that somebody else should be asked, too: when, and which."""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from echo2swarm.scheduling.leases.lease_book import LeaseBook, LeaseRecord, LeaseState
from protocols.ids import LeaseId

LATE_FACTOR: Final = 2.0
"""A lease is late after this times what few leases of its node exceed."""
URGENT_FACTOR: Final = 1.25
"""And after this times that, where its results would soon be useless."""
RESCUE_FACTOR: Final = 1.5
"""Soon is this times what others need for it."""
_MAX_SEEN: Final = 16
"""Late leases that one request looks at."""


class LateLeases:
    """Active leases that are late, the one that became so first first."""

    def __init__(self, leases: LeaseBook) -> None:
        self._leases = leases
        self._by_time: list[tuple[float, LeaseId]] = []
        self._late: dict[LeaseId, LeaseRecord] = {}

    def watch(self, lease: LeaseRecord) -> None:
        """Count a lease as late from its ``late_at_s`` on."""
        heappush(self._by_time, (lease.late_at_s, lease.lease_id))

    def next_s(self) -> float | None:
        """Return when the next lease will be late."""
        while self._by_time:
            lease = self._leases.get(self._by_time[0][1])
            if lease is not None and lease.state is LeaseState.ACTIVE:
                return self._by_time[0][0]
            heappop(self._by_time)
        return None

    def now_late(self, now_s: float) -> Iterator[LeaseRecord]:
        """Yield some leases that are late."""
        while self._by_time and self._by_time[0][0] <= now_s:
            lease = self._leases.get(heappop(self._by_time)[1])
            if lease is not None:
                self._late[lease.lease_id] = lease
        over = [
            lease.lease_id
            for lease in islice(self._late.values(), _MAX_SEEN)
            if lease.state is not LeaseState.ACTIVE
        ]
        for lease_id in over:
            del self._late[lease_id]
        yield from list(islice(self._late.values(), _MAX_SEEN))

    def done_with(self, lease: LeaseRecord) -> None:
        """Forget a late lease: everything of it that can be is asked of others."""
        self._late.pop(lease.lease_id, None)


def late_at_s(
    *,
    granted_at_s: float,
    expires_at_s: float,
    slow_s: float | None,
    typical_s: float | None,
    rescue_s: float | None,
    deadline_s: float,
) -> float:
    """Return when a lease is to count as late.

    Args:
        granted_at_s: when it was granted.
        expires_at_s: when it ends at the latest.
        slow_s: what few leases of its size exceed at its node, where measured.
        typical_s: what the middle one of all nodes takes for it, where measured.
        rescue_s: what the middle one of all nodes takes for a group, where measured.
        deadline_s: when its results become useless, as far as that is known.
    """
    if slow_s is None:
        slow_s = None if typical_s is None else LATE_FACTOR * typical_s
    if slow_s is None:
        return expires_at_s
    at_s = granted_at_s + LATE_FACTOR * slow_s
    if rescue_s is not None:
        urgent_at_s = max(
            granted_at_s + URGENT_FACTOR * slow_s, deadline_s - RESCUE_FACTOR * rescue_s
        )
        at_s = min(at_s, urgent_at_s)
    return min(at_s, expires_at_s)
