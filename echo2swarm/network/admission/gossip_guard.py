"""Whose gossip is listened to, without I/O.

Nobody passes on what its own checks refuse. So who brings what is refused is at fault, whoever
wrote it, and is not listened to for a while once it has done so several times.
"""

from typing import Final

from echo2swarm.system.throttle import Rates, Throttle
from protocols.ids import PeerId

MAX_MESSAGES_PER_S: Final = 20.0
"""Of one neighbour, on average; 30 s' worth may come at once."""
MAX_FAULTS: Final = 8
"""So many are forgiven in a row."""
FORGIVEN_PER_S: Final = 0.1
SHUT_OUT_S: Final = 300.0
MAX_REMEMBERED: Final = 1024


class GossipGuard:
    """What each neighbour has brought lately."""

    def __init__(self) -> None:
        self._rates = Rates(MAX_MESSAGES_PER_S)
        self._faults: dict[PeerId, Throttle] = {}
        self._shut_out_until_s: dict[PeerId, float] = {}

    def is_shut_out(self, peer: PeerId, now_s: float) -> bool:
        """Whether ``peer`` is not listened to now."""
        until_s = self._shut_out_until_s.get(peer)
        if until_s is None:
            return False
        if now_s >= until_s:
            del self._shut_out_until_s[peer]
            return False
        return True

    def admit(self, peer: PeerId, now_s: float) -> bool:
        """Return whether to look at one more message of ``peer``."""
        return not self.is_shut_out(peer, now_s) and self._rates.admit(peer, now_s)

    def fault(self, peer: PeerId, now_s: float) -> bool:
        """Note that ``peer`` brought what is refused; returns whether it is shut out by that."""
        bucket = self._faults.pop(peer, None)
        if bucket is None:
            bucket = Throttle(burst=MAX_FAULTS, refill_per_s=FORGIVEN_PER_S)
        self._faults[peer] = bucket
        if len(self._faults) > MAX_REMEMBERED:
            del self._faults[next(iter(self._faults))]
        if bucket.admit(now_s) is not None or self.is_shut_out(peer, now_s):
            return False
        self._shut_out_until_s[peer] = now_s + SHUT_OUT_S
        if len(self._shut_out_until_s) > MAX_REMEMBERED:
            del self._shut_out_until_s[next(iter(self._shut_out_until_s))]
        return True
