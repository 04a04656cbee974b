"""How often something may happen: warnings about peers, and what a peer asks for."""

from typing import Final

from protocols.ids import PeerId

BURST: Final = 30
"""So many warnings in a row are written: enough to see what kind of trouble it is."""
REFILL_PER_S: Final = 0.2
"""After that, on average. Each throttle allows as much: what all of them let through together is
limited where lines are written (:mod:`echo2swarm.system.log_budget`)."""


class Throttle:
    """A token bucket over time that the caller passes in; counts what it held back."""

    def __init__(self, *, burst: int = BURST, refill_per_s: float = REFILL_PER_S) -> None:
        self._burst = burst
        self._refill_per_s = refill_per_s
        self._tokens = float(burst)
        self._at_s: float | None = None
        self._num_held_back = 0

    def admit(self, now_s: float) -> int | None:
        """Return how many were held back since the last that was admitted; None holds this back."""
        if self._at_s is not None:
            gained = max(0.0, now_s - self._at_s) * self._refill_per_s
            self._tokens = min(float(self._burst), self._tokens + gained)
        self._at_s = now_s
        if self._tokens < 1:
            self._num_held_back += 1
            return None
        self._tokens -= 1
        held_back, self._num_held_back = self._num_held_back, 0
        return held_back


RATE_BURST_S: Final = 30.0
"""What a peer may ask for in so long, it may ask for at once."""
MAX_RATED_PEERS: Final = 1024


class Rates:
    """A token bucket per peer; the peers that asked last are remembered."""

    def __init__(self, max_per_s: float) -> None:
        self._max_per_s = max_per_s
        self._by_peer: dict[PeerId, Throttle] = {}

    def admit(self, peer: PeerId, now_s: float) -> bool:
        """Return whether ``peer`` may have one more."""
        burst = max(1, int(RATE_BURST_S * self._max_per_s))
        bucket = self._by_peer.pop(peer, None)
        if bucket is None:
            bucket = Throttle(burst=burst, refill_per_s=self._max_per_s)
        self._by_peer[peer] = bucket
        if len(self._by_peer) > MAX_RATED_PEERS:
            del self._by_peer[next(iter(self._by_peer))]
        return bucket.admit(now_s) is not None
