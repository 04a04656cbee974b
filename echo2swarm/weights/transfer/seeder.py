"""Which chunk the source of a payload offers whom, without I/O.

The source's uplink is the scarcest there is: every chunk should cross it once, and be
passed on by peers. So the source does not offer all it has to everybody, who would then
ask for the same; it *deals*:

- each chunk is offered to one peer first. No more is on offer than the source sends in about
  ``max_queue_s``, and to no peer more than ``max_unasked`` that it has not asked for yet: so
  the uplink stays busy, and what is decided is decided late;
- the peer is chosen that has the fewest chunks still to pass on, in proportion to its
  measured upload: who spreads what it is dealt gets more, whatever it claims. Nobody gets
  one who is much worse than the best, though the best be busy: better wait;
- a chunk is *spread* when two peers say that they hold it. A chunk that does not spread
  (its peer died, was banned, is silent or hoards) is dealt to another, and its peer is
  thought less of;
- when everything is dealt, and the peers would take noticeably longer than they have
  taken so far to pass the rest on, the source helps: it offers each peer what fewest hold.

What peers say that they hold steers this, and nothing else: a liar wastes some uplink.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, exp, inf
from statistics import median
from typing import Final

from protocols.errors import LocalProtocolError
from protocols.ids import PeerId
from protocols.rarest_first import Bag, Rng

_RATE_WINDOW_S: Final = 2.0
_MIN_SEEN_S: Final = 0.1
_SMOOTHING: Final = 0.1
_FIRST_SPREAD_S: Final = 1.0
"""What is usual, before anything has spread."""
_MAX_WEIGHT: Final = 4.0
"""In multiples of the median: measurements err, and liars try."""
_MAX_BURDEN: Final = 4.0
"""Who is this many times as burdened as the least is dealt nothing."""
_STALL_FACTOR: Final = 0.5
_SPREAD_FACTOR: Final = 1.1
"""How a peer's trust changes with each chunk that it does not, and does, pass on."""
_MIN_TRUST: Final = 1e-3
_MAX_KEPT: Final = 4
"""So many chunks are passed over that nobody can be dealt now, before dealing waits."""
_SAMPLES: Final = 16
"""Of a peer's missing chunks so many are compared: nearly the rarest is good enough."""


@dataclass(frozen=True, slots=True)
class ChunkOffer:
    """Tell ``peer`` that it may ask for these chunks."""

    peer: PeerId
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeederSettings:
    """The numbers in the rules above."""

    max_unasked: int = 3
    max_queue_s: float = 2.0
    min_in_hand: int = 6
    """Chunks on offer or asked for, however slow the uplink."""
    max_unasked_when_helping: int = 64
    """What we offer late may be what peers wait for elsewhere: then more is offered."""
    min_stall_s: float = 2.0
    """A chunk that its peer has, and did not pass on in this, and in four times what is usual,
    is dealt again."""
    max_wait_s: float = 10.0
    """So is one that its peer did not come to hold in this."""
    min_lag_s: float = 1.0
    max_lag_share: float = 0.1
    """The source helps if the rest would take longer than this share of the time so far."""
    look_s: float = 0.25


@dataclass(slots=True)
class _Peer:
    weight: float | None
    """None counts as the median of those that are known."""
    max_unasked: int
    lacks: Bag = field(default_factory=Bag)
    """What it does not hold and was not offered."""
    unasked: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    """What it asked us for and was not sent yet."""
    sent: set[int] = field(default_factory=set)
    """What it was sent and does not hold yet."""
    held: set[int] = field(default_factory=set)
    heard_s: float = 0.0
    is_silent: bool = False
    """It has offers, and says nothing: it gets no more, and holds up nobody."""
    num_unspread: int = 0
    trust: float = 1.0

    @property
    def num_in_hand(self) -> int:
        """Offers that it was not sent yet."""
        return len(self.unasked) + len(self.asked)

    @property
    def is_waited_for(self) -> bool:
        """Whether it is to ask, or to say that it holds something."""
        return bool(self.unasked or self.asked or self.sent)

    def heard(self, now_s: float) -> None:
        self.heard_s = now_s
        self.is_silent = False


@dataclass(slots=True)
class _Deal:
    index: int
    peer: PeerId
    at_s: float
    held_at_s: float | None = None


@dataclass(slots=True)
class _Rate:
    """Chunks per second, of late: an exponential window, right from its first moments on."""

    _per_s: float = 0.0
    _at_s: float = 0.0
    _began_s: float = inf

    def add(self, num: int, now_s: float) -> None:
        self._began_s = min(self._began_s, now_s)
        self._per_s = self._decayed(now_s) + num / _RATE_WINDOW_S
        self._at_s = now_s

    def per_s(self, now_s: float) -> float:
        if self._began_s == inf:
            return 0.0
        seen_s = max(now_s - self._began_s, _MIN_SEEN_S)
        return self._decayed(now_s) / (1 - exp(-seen_s / _RATE_WINDOW_S))

    def _decayed(self, now_s: float) -> float:
        return self._per_s * exp((self._at_s - now_s) / _RATE_WINDOW_S)


class Seeder:
    """The offers of one payload's source.

    Args:
        num_chunks: of the payload.
        rng: breaks ties.
        settings: see :class:`SeederSettings`.
    """

    def __init__(
        self, *, num_chunks: int, rng: Rng, settings: SeederSettings | None = None
    ) -> None:
        self._num_chunks = num_chunks
        self._rng = rng
        self._settings = settings or SeederSettings()
        self._peers: dict[PeerId, _Peer] = {}
        self._num_holders = [0] * num_chunks
        self._to_deal = deque(range(num_chunks))
        self._is_all_dealt = False
        """Whether nobody who is awake can be dealt anything."""
        self._deals: dict[int, _Deal] = {}
        """What was dealt and has not spread, in the order of dealing."""
        self._held_at_s: dict[int, float] = {}
        """When whoever was dealt a chunk first came to hold it, until it has spread."""
        self._median_weight = 1.0
        self._num_lacking = 0
        """Chunks that peers do not hold, over all peers."""
        self._began_s = inf
        self._settled_s = -inf
        """When the last chunk was dealt or sent for the first time, or the last peer joined."""
        self._usual_spread_s = _FIRST_SPREAD_S
        self._relay_rate = _Rate()
        self._own_rate = _Rate()

    def joined(
        self, peer: PeerId, held: Iterable[int], *, weight: float | None, now_s: float
    ) -> list[ChunkOffer]:
        """Note a peer, what it holds, and its measured upload in any unit; None if unknown."""
        if peer in self._peers:
            raise LocalProtocolError(f"{peer} has joined already")
        state = self._peers[peer] = _Peer(weight, self._settings.max_unasked)
        state.held = set(held)
        for index in state.held:
            self._num_holders[index] += 1
            self._look_if_spread(index, now_s)
        for index in range(self._num_chunks):
            if index not in state.held:
                state.lacks.add(index)
        self._num_lacking += self._num_chunks - len(state.held)
        self._weigh()
        self._settled_s = now_s
        return self._offers(now_s)

    def left(self, peer: PeerId, now_s: float) -> list[ChunkOffer]:
        """Note that a peer is gone, or banned: what it was dealt is dealt to others at once.

        One that holds everything is not gone: it has no more to ask, and serves others.
        """
        state = self._peers.pop(peer, None)
        if state is None:
            return []
        self._weigh()
        self._num_lacking -= self._num_chunks - len(state.held)
        if len(state.held) < self._num_chunks:
            for index in state.held:
                self._num_holders[index] -= 1
        again = [deal.index for deal in self._deals.values() if deal.peer == peer]
        # Rarely: those that had it leave, one after the other.
        lost = [i for i in state.held if not self._num_holders[i] and i not in self._deals]
        for index in again:
            del self._deals[index]
        self._to_deal.extendleft(sorted({*again, *lost}, reverse=True))
        return self._offers(now_s)

    def is_offered(self, peer: PeerId, index: int) -> bool:
        """Whether ``peer`` may ask for a chunk."""
        state = self._peers.get(peer)
        return state is not None and index not in state.lacks

    def asked(self, peer: PeerId, index: int, now_s: float) -> list[ChunkOffer]:
        """Note that a peer has asked for what it was offered."""
        state = self._peers.get(peer)
        if state is None or index not in state.unasked:
            return []
        self._began_s = min(self._began_s, now_s)
        state.heard(now_s)
        state.unasked.remove(index)
        state.asked.add(index)
        return self._offers(now_s)

    def sent(self, peer: PeerId, index: int, now_s: float) -> list[ChunkOffer]:
        """Note that a chunk has been sent, or will not be: it keeps no other back any more."""
        state = self._peers.get(peer)
        if state is None or index not in state.asked:
            return []
        state.asked.remove(index)
        state.sent.add(index)
        if (deal := self._deals.get(index)) is not None and deal.peer == peer:
            self._settled_s = now_s
        self._own_rate.add(1, now_s)
        return self._offers(now_s)

    def held(self, peer: PeerId, indices: Iterable[int], now_s: float) -> list[ChunkOffer]:
        """Note that a peer says it has come to hold chunks, whoever they came from."""
        state = self._peers.get(peer)
        if state is None:
            return []
        state.heard(now_s)
        num_relayed = 0
        for index in indices:
            if index in state.held:
                continue
            state.held.add(index)
            self._num_lacking -= 1
            if index in state.lacks:
                state.lacks.remove(index)
            num_relayed += index not in state.sent
            for waiting in (state.unasked, state.asked, state.sent):
                waiting.discard(index)
            self._num_holders[index] += 1
            if (deal := self._deals.get(index)) is not None and deal.peer == peer:
                deal.held_at_s = now_s
                self._held_at_s.setdefault(index, now_s)
            self._look_if_spread(index, now_s)
        if num_relayed:
            self._relay_rate.add(num_relayed, now_s)
        return self._offers(now_s)

    def next_deadline_s(self, now_s: float) -> float:
        """Return when :meth:`deadline_passed` must next be called; ``inf`` for never."""
        return now_s + self._settings.look_s if self._num_lacking else inf

    def deadline_passed(self, now_s: float) -> list[ChunkOffer]:
        """See what the time brings: chunks that did not spread, peers that need help."""
        stall_s = max(self._settings.min_stall_s, 4 * self._usual_spread_s)
        for state in self._peers.values():
            silent_s = now_s - state.heard_s
            state.is_silent = state.is_waited_for and silent_s >= self._settings.max_wait_s
        for deal in list(self._deals.values()):
            since_s, limit_s = deal.at_s, max(self._settings.max_wait_s, stall_s)
            if deal.held_at_s is not None:
                since_s, limit_s = deal.held_at_s, stall_s
            if now_s - since_s >= limit_s:
                self._end_deal(deal, _STALL_FACTOR)
                if len(self._peers) > 1:
                    self._to_deal.append(deal.index)
        if self._is_all_dealt and self._peers_need_help(now_s):
            for state in self._peers.values():
                if not (state.asked or state.sent):
                    state.max_unasked = min(
                        2 * state.max_unasked, self._settings.max_unasked_when_helping
                    )
        return self._offers(now_s)

    def _offers(self, now_s: float) -> list[ChunkOffer]:
        offers: dict[PeerId, list[int]] = {}
        room = self._room(now_s)
        if room > 0:
            room -= self._deal(offers, room, now_s)
        if room > 0 and self._is_all_dealt and self._peers_need_help(now_s):
            self._help(offers, room, now_s)
        return [ChunkOffer(peer, tuple(indices)) for peer, indices in offers.items()]

    def _room(self, now_s: float) -> int:
        """Return how many more chunks may be on offer."""
        in_time = ceil(self._own_rate.per_s(now_s) * self._settings.max_queue_s)
        num_in_hand = sum(s.num_in_hand for s in self._peers.values() if not s.is_silent)
        return max(self._settings.min_in_hand, in_time) - num_in_hand

    def _deal(self, offers: dict[PeerId, list[int]], room: int, now_s: float) -> int:
        awake = [peer for peer, state in self._peers.items() if not state.is_silent]
        kept: list[int] = []
        num_dealt = 0
        for _ in range(len(self._to_deal)):
            if num_dealt >= room or len(kept) > _MAX_KEPT:
                break
            index = self._to_deal.popleft()
            if self._num_holders[index] >= 2:
                continue
            burdens = {p: self._burden(p) for p in awake if index in self._peers[p].lacks}
            limit = _MAX_BURDEN * min(burdens.values(), default=0.0)
            free = [p for p, burden in burdens.items() if burden <= limit and self._is_free(p)]
            if not free:
                if burdens:  # in a moment
                    kept.append(index)
                elif any(index in state.lacks for state in self._peers.values()):
                    self._to_deal.append(index)  # when who lacks it speaks again
                continue
            peer = min(free, key=burdens.__getitem__)
            self._offer(offers, peer, index, now_s)
            num_dealt += 1
            self._peers[peer].num_unspread += 1
            self._deals[index] = _Deal(index, peer, now_s)
            self._settled_s = now_s
        self._to_deal.extendleft(reversed(kept))
        self._is_all_dealt = not kept and num_dealt < room
        return num_dealt

    def _weigh(self) -> None:
        known = [s.weight for s in self._peers.values() if s.weight is not None]
        self._median_weight = median(known) if known else 1.0

    def _is_free(self, peer: PeerId) -> bool:
        return len(self._peers[peer].unasked) < self._settings.max_unasked

    def _burden(self, peer: PeerId) -> float:
        state = self._peers[peer]
        weight = self._median_weight if state.weight is None else state.weight
        weight = min(weight, _MAX_WEIGHT * self._median_weight)
        return (state.num_unspread + 1) / (weight * state.trust)

    def _peers_need_help(self, now_s: float) -> bool:
        if not self._num_lacking or now_s - self._settled_s < self._settings.min_lag_s:
            return False
        allowed_s = max(
            self._settings.min_lag_s, self._settings.max_lag_share * (now_s - self._began_s)
        )
        return self._num_lacking > self._relay_rate.per_s(now_s) * allowed_s

    def _help(self, offers: dict[PeerId, list[int]], room: int, now_s: float) -> None:
        """Offer each peer what fewest hold, those first who lack most."""
        awake = [peer for peer, state in self._peers.items() if not state.is_silent]
        for peer in sorted(awake, key=lambda p: -len(self._peers[p].lacks)):
            state = self._peers[peer]
            while room > 0 and state.lacks and len(state.unasked) < state.max_unasked:
                samples = (state.lacks.draw(self._rng) for _ in range(_SAMPLES))
                index = min(samples, key=self._num_holders.__getitem__)
                self._offer(offers, peer, index, now_s)
                room -= 1

    def _offer(
        self, offers: dict[PeerId, list[int]], peer: PeerId, index: int, now_s: float
    ) -> None:
        state = self._peers[peer]
        state.lacks.remove(index)
        if not state.is_waited_for:
            state.heard_s = now_s
        state.unasked.add(index)
        offers.setdefault(peer, []).append(index)

    def _look_if_spread(self, index: int, now_s: float) -> None:
        if self._num_holders[index] < 2:
            return
        if (deal := self._deals.get(index)) is not None:
            self._end_deal(deal, _SPREAD_FACTOR)
        held_at_s = self._held_at_s.pop(index, None)
        if held_at_s is not None:
            self._usual_spread_s += _SMOOTHING * (now_s - held_at_s - self._usual_spread_s)

    def _end_deal(self, deal: _Deal, factor: float) -> None:
        del self._deals[deal.index]
        if (state := self._peers.get(deal.peer)) is not None:
            state.num_unspread -= 1
            state.trust = min(1.0, max(_MIN_TRUST, state.trust * factor))
