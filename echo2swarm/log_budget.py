"""How many log lines peers can cause: strangers must not be able to fill a log, or a disk.

Lines about the work that a peer does are many, and each costs it work; all others are seldom where
nobody means harm. Each kind has a budget per peer and one for all. What is held back is counted,
and the next line of that peer tells how many there were.
"""

import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from echo2swarm.network.throttle import Throttle

MAX_PEERS: Final = 1024
"""Whose lines are counted; of more, who was heard of least lately is forgotten."""
WORK_EVENTS: Final = frozenset(
    {
        "evaluation.ended",
        "evaluation.leased",
        "lease.ended",
        "lease.granted",
        "rollouts.judged",
        "version.applied",
    }
)
MAX_NAME_CHARS: Final = 40
_NAMES: Final = frozenset({"device", "engine", "name"})
"""What peers call themselves and what they have: long names would fill a log with few lines."""
_UNNAMED: Final = frozenset({"libp2p.message", "peer.reachable_again", "peer.unreachable"})
"""Events about whomever others name: they count together, as one peer's."""

EventDict = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class Budget:
    """Lines of one kind."""

    per_peer_burst: int
    per_peer_per_s: float
    burst: int
    per_s: float


WORK: Final = Budget(per_peer_burst=1_000, per_peer_per_s=10.0, burst=2_000, per_s=40.0)
OTHERS: Final = Budget(per_peer_burst=60, per_peer_per_s=0.2, burst=300, per_s=3.0)
"""With the lines of :data:`WORK`, some 43 a second at the worst: well under a megabyte a minute."""


class LogBudget:
    """A step of structlog's that drops lines about peers who cause too many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds = {True: _Kind(WORK), False: _Kind(OTHERS)}

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Let an event through.

        Raises:
            structlog.DropEvent: it is held back.
        """
        name = str(event.get("event", ""))
        cause = event.get("by") or event.get("peer") or (name if name in _UNNAMED else None)
        if cause is None:
            return event
        num_held_back = self._kinds[name in WORK_EVENTS].admit(str(cause), self._clock())
        if num_held_back is None:
            raise structlog.DropEvent
        for key in _NAMES & event.keys():
            event[key] = str(event[key])[:MAX_NAME_CHARS]
        if num_held_back:
            event["num_not_shown"] = num_held_back + int(event.get("num_not_shown") or 0)
        return event


class _Kind:
    """The lines of one kind, of each peer and of all."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._all = Throttle(burst=budget.burst, refill_per_s=budget.per_s)
        self._by_peer: dict[str, Throttle] = {}
        self._held_back: dict[str, int] = {}

    def admit(self, peer: str, now_s: float) -> int | None:
        throttle = self._by_peer.pop(peer, None) or Throttle(
            burst=self._budget.per_peer_burst, refill_per_s=self._budget.per_peer_per_s
        )
        self._by_peer[peer] = throttle
        if len(self._by_peer) > MAX_PEERS:
            oldest = next(iter(self._by_peer))
            del self._by_peer[oldest]
            self._held_back.pop(oldest, None)
        # Its own budget first: who is over it takes nothing of what there is for all.
        if throttle.admit(now_s) is None or self._all.admit(now_s) is None:
            self._held_back[peer] = self._held_back.get(peer, 0) + 1
            return None
        return self._held_back.pop(peer, 0)
