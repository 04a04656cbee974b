"""Who may hold a stream of one protocol when there is not room for all, without I/O.

A request that has not arrived whole costs its sender nothing, so such streams are counted apart
from those at work. Where a limit is reached, whoever holds most gives way to a newcomer, and a
share is kept for peers whose work was checked: many identities keep nobody out.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocols.ids import PeerId

KEPT_SHARE: Final = 0.25
"""Of all seats, so many are for proven peers only."""
MAX_UNREAD_BYTES: Final = 512 * 1024 * 1024
"""Of requests of one protocol that have not arrived whole, over all peers."""
MAX_STRANGERS_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""Of them, those of peers that are not proven; more than the longest request."""


@dataclass(slots=True, eq=False)
class Seat:
    """One stream that is served."""

    peer: PeerId
    evict: Callable[[], None]
    """Called, once at most, when the seat is taken away."""
    is_unread: bool = True
    """Whether its request has not arrived whole."""
    num_bytes: int = 0
    """So much of that request is here."""
    is_evicted: bool = False


class Seats:
    """The streams of one protocol: those whose request is on its way, and those at work.

    Args:
        max_seats: of each kind, over all peers.
        max_per_peer: of both kinds together.
        is_proven: for whom a share is kept.
    """

    def __init__(
        self,
        *,
        max_seats: int,
        max_per_peer: int,
        is_proven: Callable[[PeerId], bool],
    ) -> None:
        self._max_seats = max_seats
        self._max_for_strangers = max_seats - int(KEPT_SHARE * max_seats)
        self._max_per_peer = max_per_peer
        self._is_proven = is_proven
        self._unread: dict[Seat, None] = {}
        self._at_work: dict[Seat, None] = {}
        self._per_peer: Counter[PeerId] = Counter()
        self._num_unread_bytes = 0

    @property
    def num_unread(self) -> int:
        """How many requests are on their way."""
        return len(self._unread)

    @property
    def num_at_work(self) -> int:
        """How many requests are being answered."""
        return len(self._at_work)

    def take(self, peer: PeerId, evict: Callable[[], None]) -> Seat | None:
        """Give a new stream a seat, maybe that of another; None if ``peer`` may have none."""
        if self._per_peer[peer] >= self._max_per_peer:
            return None
        if not self._make_room(self._unread, peer, num_ahead=0):
            return None
        seat = Seat(peer, evict)
        self._unread[seat] = None
        self._per_peer[peer] += 1
        return seat

    def arrived(self, seat: Seat, num_bytes: int) -> None:
        """Note how much of a request is here; too much in all costs whoever sent most."""
        if seat not in self._unread:
            return
        self._num_unread_bytes += num_bytes - seat.num_bytes
        seat.num_bytes = num_bytes
        for limit_bytes, is_all in (
            (MAX_STRANGERS_UNREAD_BYTES, False),
            (MAX_UNREAD_BYTES, True),
        ):
            if self._num_unread_bytes > limit_bytes:
                self._shed_bytes(limit_bytes, is_all=is_all)

    def begin(self, seat: Seat) -> bool:
        """Note that a request has arrived whole; False if its seat is gone, or nobody is free."""
        if seat not in self._unread:
            return False
        self._remove(seat)
        if not self._make_room(self._at_work, seat.peer, num_ahead=1):
            return False
        seat.is_unread = False
        self._at_work[seat] = None
        self._per_peer[seat.peer] += 1
        return True

    def leave(self, seat: Seat) -> None:
        """Free a seat; it may have been taken away already."""
        if seat in self._unread or seat in self._at_work:
            self._remove(seat)

    def _make_room(self, seats: dict[Seat, None], peer: PeerId, *, num_ahead: int) -> bool:
        """See that ``peer`` can have one more seat.

        Args:
            seats: of which kind.
            peer: who wants one.
            num_ahead: by so many more than the newcomer's seats, with its new one, whoever holds
                most must be ahead, to lose one to it. What is at work is not given up for nothing.
        """
        if len(seats) < self._max_for_strangers:
            return True
        strangers = [seat for seat in seats if not self._is_proven(seat.peer)]
        is_proven = self._is_proven(peer)
        if is_proven and len(seats) < self._max_seats:
            return True
        if len(seats) < self._max_seats and len(strangers) < self._max_for_strangers:
            return True
        among = strangers or list(seats)
        held = Counter(seat.peer for seat in among)
        most = max(held.values(), default=0)
        num_own = sum(seat.peer == peer for seat in seats)
        is_before = is_proven and bool(strangers)
        if not is_before and most < num_own + 1 + num_ahead:
            return False
        self._evict(next(seat for seat in among if held[seat.peer] == most))
        return True

    def _shed_bytes(self, limit_bytes: int, *, is_all: bool) -> None:
        """Evict the largest requests of whoever sent most, until the rest is within a limit."""
        seats = [s for s in self._unread if is_all or not self._is_proven(s.peer)]
        while sum(seat.num_bytes for seat in seats) > limit_bytes:
            sent: Counter[PeerId] = Counter()
            for seat in seats:
                sent[seat.peer] += seat.num_bytes
            victim = max(seats, key=lambda seat: (sent[seat.peer], seat.num_bytes))
            seats.remove(victim)
            self._evict(victim)

    def _evict(self, seat: Seat) -> None:
        self._remove(seat)
        seat.is_evicted = True
        seat.evict()

    def _remove(self, seat: Seat) -> None:
        if seat in self._unread:
            del self._unread[seat]
            self._num_unread_bytes -= seat.num_bytes
        else:
            del self._at_work[seat]
        self._per_peer[seat.peer] -= 1
        if not self._per_peer[seat.peer]:
            del self._per_peer[seat.peer]
