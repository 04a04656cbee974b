"""Pulling one payload from all who hold parts of it, without I/O.

Specification: ``docs/specs/chunks.md``, protocol ``/echo2/chunks/2.1.0``.

The caller owns streams, disk and clock: it reports what happened, with the
time, and performs the effects it gets back, in order. The rules:

- every holder has as many requests open as keep its link busy, at least two; one until it
  has proven itself by a good chunk: what a holder merely claims changes nobody else's turn;
- rarest chunk first, ties at random: so peers fetch different chunks, and trade them. The
  source (the learner) is a holder like others: that it sends each chunk once only, as long
  as peers can pass it on, is its own doing: it deals;
- no chunk is asked of two holders, except at the end: when nothing else is left to ask
  for, a chunk that has been waited for longer than ``endgame_after_s`` is asked once more;
  before that, only if it is waited for very long, and of a holder with nothing else to do;
- a bad hash bans the holder for this payload; silence drops it, and it may come back,
  but not for ever.

Per chunk::

    MISSING --asked--> ASKED --arrived--> CHECKED --good--> HELD
       ^                 |                   |
       +-- holder lost --+------ bad --------+
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, Protocol

from protocols.chunk_effects import AskChunk, AskHashes, DropPeer, Effect, Finished
from protocols.chunk_source import ChunkSource, DownloadSettings
from protocols.chunks import indices_in
from protocols.errors import LocalProtocolError, MalformedMessageError
from protocols.ids import PeerId
from protocols.rarest_first import RarestFirst, Rng
from protocols.reasons import Reason

_PATIENCE_BEFORE_END: Final = 4
_LOOK_S: Final = 0.2
"""So often is looked for what is slow to come."""
MAX_SILENCES: Final = 3
"""A holder that was silent this often, and brought nothing between, is banned."""
MAX_REFUSALS: Final = 3
"""A holder that has not got what it said it has, this often, is dropped."""


class OrderPacer(Protocol):
    """Says how fast chunks may be asked for: bytes that are asked for come."""

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before anything more is asked for."""
        ...

    def asked(self, num_bytes: int, now_s: float) -> None:
        """Note that bytes were asked for."""
        ...


class ChunkDownload:
    """The state of one payload's download.

    Args:
        num_chunks: of the payload.
        missing: the chunks that are not here yet.
        has_hashes: whether the list of chunk hashes is here.
        source: the holder that is trusted from the start, if there is one.
        rng: breaks ties.
        settings: see :class:`DownloadSettings`.
        pacer: holds orders back; None asks for as much as holders take.
        chunk_bytes: of a chunk, for the pacer.
    """

    def __init__(
        self,
        *,
        num_chunks: int,
        missing: Iterable[int],
        has_hashes: bool,
        source: PeerId | None,
        rng: Rng,
        settings: DownloadSettings | None = None,
        pacer: OrderPacer | None = None,
        chunk_bytes: int = 0,
    ) -> None:
        self._pacer = pacer
        self._chunk_bytes = chunk_bytes
        self._num_chunks = num_chunks
        self._has_hashes = has_hashes
        self._source = source
        self._settings = settings or DownloadSettings()
        self._order = RarestFirst(num_chunks=num_chunks, rng=rng)
        self._missing = set(missing)
        self._unasked = set(self._missing)
        self._checking: dict[int, int] = {}
        self._holders: dict[PeerId, ChunkSource] = {}
        self._banned: set[PeerId] = set()
        self._silences: dict[PeerId, int] = {}
        """How often a holder was silent since it last brought a chunk."""
        self._wake_at_s = inf
        self._look_again_s = -inf
        for index in self._unasked:
            self._order.open(index)

    @property
    def is_finished(self) -> bool:
        """Whether every chunk is here."""
        return not self._missing

    def is_missing(self, index: int) -> bool:
        """Whether a chunk is not here yet."""
        return index in self._missing

    def is_banned(self, holder: PeerId) -> bool:
        """Whether ``holder`` sent wrong bytes and must not be opened again."""
        return holder in self._banned

    def holder_opened(
        self, holder: PeerId, bitmap: bytes, *, has_hashes: bool, now_s: float
    ) -> list[Effect]:
        """Take a holder's first answer: what it has."""
        if holder in self._holders:
            raise LocalProtocolError(f"{holder} is open already")
        if holder in self._banned:
            return [DropPeer(holder, "banned")]
        try:
            indices = list(indices_in(bitmap, num_chunks=self._num_chunks))
        except MalformedMessageError as exc:
            self._banned.add(holder)
            return [DropPeer(holder, str(exc), exc.reason)]
        self._holders[holder] = ChunkSource(has_hashes)
        self._order.add_holder(holder)
        if holder == self._source:
            self._order.count(holder)
        for index in indices:
            self._order.add_chunk(holder, index)
        return self._ask(now_s)

    def have_received(self, holder: PeerId, indices: Sequence[int], now_s: float) -> list[Effect]:
        """Note chunks that a holder has come to hold."""
        state = self._holders.get(holder)
        if state is None:
            return []  # crossed with our DropHolder
        if any(index >= self._num_chunks for index in indices):
            return self._fault(holder, "has a chunk beyond the last", Reason.MALFORMED, now_s)
        state.has_hashes = True  # it could not have verified them otherwise
        for index in indices:
            self._order.add_chunk(holder, index)
        return self._ask_one(holder, now_s)

    def hashes_checked(self, holder: PeerId, *, is_good: bool, now_s: float) -> list[Effect]:
        """Note a list of hashes from ``holder``, and whether it is the payload's."""
        state = self._holders.get(holder)
        if state is None and is_good:
            self._has_hashes = True
        if state is None:
            return []
        if state.hashes_asked_s is None:
            return self._fault(holder, "sent hashes unasked", Reason.MALFORMED, now_s)
        state.hashes_asked_s = None
        if not is_good:
            return self._fault(holder, "sent wrong hashes", Reason.BAD_CHUNK_HASH, now_s)
        self._has_hashes = True
        return self._ask(now_s)

    def chunk_arrived(self, holder: PeerId, index: int, now_s: float) -> list[Effect]:
        """Note the bytes of a chunk, still unchecked: the holder's turn is free again.

        If it is missing (:meth:`is_missing`, asked *before*), check it and report with
        :meth:`chunk_checked`; otherwise it came twice and is to be forgotten.
        """
        state = self._holders.get(holder)
        if state is None:
            return []
        asked = state.chunks.pop(index, None)
        if asked is None:
            return self._fault(holder, "sent a chunk unasked", Reason.MALFORMED, now_s)
        state.arrived(asked, now_s)
        self._silences.pop(holder, None)
        if index in self._missing:
            self._checking[index] = self._checking.get(index, 0) + 1
        return self._ask_one(holder, now_s)

    def chunk_checked(
        self, holder: PeerId, index: int, *, is_good: bool, now_s: float
    ) -> list[Effect]:
        """Note whether a chunk that arrived is the right one (and on disk)."""
        if num_others := self._checking.pop(index, 1) - 1:
            self._checking[index] = num_others
        if not is_good:
            self._release(index)
            return self._fault(holder, f"chunk {index} is wrong", Reason.BAD_CHUNK_HASH, now_s)
        self._missing.discard(index)
        self._unasked.discard(index)
        self._order.close(index)
        if holder in self._holders:
            self._holders[holder].is_proven = True
            self._order.count(holder)
        return [Finished()] if self.is_finished else self._ask_one(holder, now_s)

    def refused(
        self, holder: PeerId, index: int | None, reason: Reason, now_s: float
    ) -> list[Effect]:
        """Note that a holder refused a request."""
        state = self._holders.get(holder)
        if state is None:
            return []
        if index is None or reason != Reason.UNKNOWN_CHUNK:
            return self._drop(holder, f"refused: {reason}", None, now_s)
        if state.chunks.pop(index, None) is None:
            return self._fault(holder, "refused what it was not asked", Reason.MALFORMED, now_s)
        state.num_refusals += 1
        self._order.remove_chunk(holder, index)
        self._release(index)
        if state.num_refusals >= MAX_REFUSALS:
            return self._fault(holder, "has not what it says", Reason.UNKNOWN_CHUNK, now_s)
        return self._ask(now_s)

    def violated(self, holder: PeerId, why: str, reason: Reason, now_s: float) -> list[Effect]:
        """Note that a holder sent what is no message of the protocol."""
        return self._fault(holder, why, reason, now_s) if holder in self._holders else []

    def holder_lost(self, holder: PeerId, now_s: float) -> list[Effect]:
        """Note that the stream to ``holder`` is gone; it may be opened again."""
        if holder not in self._holders:
            return []
        self._forget(holder)
        return self._ask(now_s)

    def next_deadline_s(self) -> float:
        """Return when :meth:`deadline_passed` must next be called; ``inf`` for never."""
        deadlines_s = (state.deadline_s(self._settings) for state in self._holders.values())
        return min(min(deadlines_s, default=inf), self._wake_at_s)

    def deadline_passed(self, now_s: float) -> list[Effect]:
        """Drop the holders that are silent, and see what else the time brings."""
        silent = [
            holder
            for holder, state in self._holders.items()
            if state.deadline_s(self._settings) <= now_s
        ]
        for holder in silent:
            self._silences[holder] = self._silences.get(holder, 0) + 1
            if self._silences[holder] >= MAX_SILENCES:
                self._banned.add(holder)
            self._forget(holder)
        return [*(DropPeer(holder, "silent") for holder in silent), *self._ask(now_s)]

    def _ask(self, now_s: float) -> list[Effect]:
        """Fill every holder's turn."""
        self._wake_at_s = inf
        if self.is_finished:
            return []
        if not self._has_hashes:
            return self._ask_hashes(now_s)
        effects = [e for holder in list(self._holders) for e in self._fill(holder, now_s)]
        return effects + self._ask_again(now_s)

    def _ask_one(self, holder: PeerId, now_s: float) -> list[Effect]:
        """Fill one holder's turn, where what happened gives nothing to do to the others."""
        if self.is_finished or not self._has_hashes or holder not in self._holders:
            return self._ask(now_s)
        return self._fill(holder, now_s) + self._ask_again(now_s)

    def _fill(self, holder: PeerId, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._has_free_turn(holder) and self._may_order(now_s):
            index = self._order.rarest(holder)
            if index is None:
                break
            effects.append(self._ask_for(holder, index, now_s))
        return effects

    def _ask_again(self, now_s: float) -> list[Effect]:
        """Ask who has nothing else to do for what is slow to come; those first whom we trust."""
        effects: list[Effect] = []
        if now_s >= self._look_again_s:
            oldest_s = min([now_s, *(state.oldest_asked_s for state in self._holders.values())])
            self._look_again_s = max(now_s + _LOOK_S, oldest_s + self._settings.endgame_after_s)
            late = self._late(now_s)
        else:
            late = []
        self._wake_at_s = min(self._wake_at_s, self._look_again_s)
        for holder in sorted(self._holders, key=lambda h: not self._is_trusted(h)):
            for index in list(late):
                if not (self._has_free_turn(holder) and self._may_order(now_s)):
                    break
                if index not in self._holders[holder].chunks and self._order.has(holder, index):
                    effects.append(self._ask_for(holder, index, now_s))
                    late.remove(index)
        return effects

    def _late(self, now_s: float) -> list[int]:
        """Return the chunks that were asked for once and too long ago, the oldest first."""
        after_s = self._endgame_after_s()
        late: list[tuple[float, int]] = []
        for state in self._holders.values():
            for index, asked_s in state.chunks.items():  # in the order of asking
                if now_s < asked_s + after_s:
                    break
                if index in self._missing and index not in self._checking:
                    late.append((asked_s, index))
        counts = Counter(index for _, index in late)
        return [
            index
            for _, index in sorted(late)
            if counts[index] == 1 and sum(index in s.chunks for s in self._holders.values()) == 1
        ]

    def _ask_hashes(self, now_s: float) -> list[Effect]:
        waiting = [s for state in self._holders.values() if (s := state.hashes_asked_s) is not None]
        if len(waiting) > 1:
            return []
        if waiting and now_s < (second_at_s := waiting[0] + self._settings.endgame_after_s):
            self._wake_at_s = second_at_s
            return []
        for holder in sorted(self._holders, key=lambda h: not self._is_trusted(h)):
            state = self._holders[holder]
            if state.has_hashes and state.hashes_asked_s is None:
                state.hashes_asked_s = now_s
                return [AskHashes(holder)]
        return []

    def _is_trusted(self, holder: PeerId) -> bool:
        return holder == self._source or self._holders[holder].is_proven

    def _has_free_turn(self, holder: PeerId) -> bool:
        state = self._holders[holder]
        limit = state.window(self._settings) if self._is_trusted(holder) else 1
        return len(state.chunks) < limit

    def _may_order(self, now_s: float) -> bool:
        """Return whether the pacer lets one more chunk be asked for; wakes us when it will."""
        wait_s = 0.0 if self._pacer is None else self._pacer.wait_s(now_s)
        if wait_s > 0:
            self._wake_at_s = min(self._wake_at_s, now_s + wait_s)
        return wait_s <= 0

    def _endgame_after_s(self) -> float:
        quickest_s = min((state.shortest_wait_s for state in self._holders.values()), default=inf)
        after_s = self._settings.endgame_after_s
        if quickest_s < inf:
            after_s = max(after_s, 2 * quickest_s)
        # Before the end, what is asked twice costs somebody else's turn.
        return _PATIENCE_BEFORE_END * after_s if self._unasked else after_s

    def _ask_for(self, holder: PeerId, index: int, now_s: float) -> AskChunk:
        self._holders[holder].chunks[index] = now_s
        self._unasked.discard(index)
        self._order.close(index)
        if self._pacer is not None:
            self._pacer.asked(self._chunk_bytes, now_s)
            # Whoever was asked comes last next time: what is scarce goes around.
            self._holders[holder] = self._holders.pop(holder)
        return AskChunk(holder, index)

    def _release(self, index: int) -> None:
        """Let a chunk be asked for again, unless somebody else still may bring it."""
        is_expected = index in self._checking or any(
            index in state.chunks for state in self._holders.values()
        )
        if index in self._missing and not is_expected:
            self._unasked.add(index)
            self._order.open(index)

    def _fault(self, holder: PeerId, why: str, fault: Reason, now_s: float) -> list[Effect]:
        self._banned.add(holder)
        return self._drop(holder, why, fault, now_s)

    def _drop(self, holder: PeerId, why: str, fault: Reason | None, now_s: float) -> list[Effect]:
        self._forget(holder)
        return [DropPeer(holder, why, fault), *self._ask(now_s)]

    def _forget(self, holder: PeerId) -> None:
        state = self._holders.pop(holder, None)
        if state is None:
            return  # It left while the last it sent was being checked.
        self._order.remove_holder(holder)
        for index in state.chunks:
            self._release(index)
