"""Who can be dialled, from what came of others' attempts; pure.

One success is proof, since the dialler checks the key of whom it reaches; only that
dialler's own later failure takes it back. Failures prove little: the dialler may be the
one that is cut off. So several have to fail, for a while.
"""

from collections.abc import Iterable
from typing import Final

from protocols.heartbeat import Dial, LinkReport
from protocols.ids import PeerId
from protocols.status import Reachability

FAILED_S: Final = 60.0
"""Failures count after this long: a peer may have been starting."""
MIN_FAILED: Final = 3
"""So many must have failed, or all of fewer neighbours."""


class ReachBook:
    """What is known of who can be dialled."""

    def __init__(self) -> None:
        self._reached_by: dict[PeerId, set[PeerId]] = {}
        self._failed_since_s: dict[PeerId, dict[PeerId, float]] = {}
        """By peer, and by who tried."""

    def reported(self, reporter: PeerId, links: Iterable[LinkReport], now_s: float) -> None:
        """Take in what came of a member's attempts; those about strangers are left out."""
        for link in links:
            peer = PeerId(link.peer_id)
            reached_by, failed = self._reached_by.get(peer), self._failed_since_s.get(peer)
            if peer == reporter or reached_by is None or failed is None:
                continue
            match link.dial:
                case Dial.REACHED:
                    reached_by.add(reporter)
                    failed.pop(reporter, None)
                case Dial.FAILED:
                    reached_by.discard(reporter)
                    failed.setdefault(reporter, now_s)
                case Dial.UNTRIED:
                    reached_by.discard(reporter)
                    failed.pop(reporter, None)

    def began(self, peer: PeerId) -> None:
        """Note that ``peer`` has started: what was found before may be so no more."""
        self.ended(peer)
        self._reached_by[peer], self._failed_since_s[peer] = set(), {}

    def ended(self, peer: PeerId) -> None:
        """Note that ``peer`` is gone, and with it what it found."""
        self._reached_by.pop(peer, None)
        self._failed_since_s.pop(peer, None)
        for reached_by in self._reached_by.values():
            reached_by.discard(peer)
        for failed in self._failed_since_s.values():
            failed.pop(peer, None)

    def reachability(self, peer: PeerId, *, num_neighbours: int, now_s: float) -> Reachability:
        """Return whether others can dial ``peer``, which so many were given."""
        if self._reached_by.get(peer):
            return Reachability.YES
        failed = self._failed_since_s.get(peer, {}).values()
        num_failed = sum(now_s - since_s >= FAILED_S for since_s in failed)
        if num_failed >= max(1, min(MIN_FAILED, num_neighbours)):
            return Reachability.NO
        return Reachability.UNKNOWN
