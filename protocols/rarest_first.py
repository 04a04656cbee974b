"""Which chunk to ask a holder for next: the rarest it has, ties at random.

Bookkeeping for :mod:`protocols.chunk_download`. Each step costs time in proportion
to the number of holders, whatever the number of chunks.
"""

from typing import Protocol

from protocols.ids import PeerId


class Rng(Protocol):
    """A source of random numbers, such as :class:`random.Random`."""

    def randrange(self, stop: int, /) -> int:
        """Return an integer from 0 up to, not including, ``stop``."""
        ...


class Bag:
    """A set of integers from which one can be drawn at random."""

    __slots__ = ("_items", "_places")

    def __init__(self) -> None:
        self._items: list[int] = []
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: int) -> bool:
        return item in self._places

    def add(self, item: int) -> None:
        """Put in an item that is not in."""
        self._places[item] = len(self._items)
        self._items.append(item)

    def remove(self, item: int) -> None:
        """Take out an item that is in."""
        place, last = self._places.pop(item), self._items.pop()
        if last != item:
            self._items[place], self._places[last] = last, place

    def draw(self, rng: Rng) -> int:
        """Return any item; it stays in."""
        return self._items[rng.randrange(len(self._items))]


class RarestFirst:
    """Which chunks each holder has, and which of them are still to be asked for.

    The *rarity* of a chunk is the number of holders that have it, of those that count:
    a holder's claims are kept from the start, but count only from :meth:`count` on.
    """

    def __init__(self, *, num_chunks: int, rng: Rng) -> None:
        self._rng = rng
        self._num_chunks = num_chunks
        self._is_open = bytearray(num_chunks)
        self._rarity = [0] * num_chunks
        self._has: dict[PeerId, bytearray] = {}
        self._counted: set[PeerId] = set()
        self._bags: dict[PeerId, dict[int, Bag]] = {}

    def add_holder(self, holder: PeerId) -> None:
        """Start keeping books on a holder; it has nothing yet, and doesn't count."""
        self._has[holder] = bytearray(self._num_chunks)
        self._bags[holder] = {}

    def remove_holder(self, holder: PeerId) -> None:
        """Forget a holder."""
        has = self._has.pop(holder)
        del self._bags[holder]
        if holder in self._counted:
            self._counted.remove(holder)
            for index in range(self._num_chunks):
                if has[index]:
                    self._shift(index, -1)

    def count(self, holder: PeerId) -> None:
        """From now on, what ``holder`` has makes chunks less rare."""
        if holder in self._counted:
            return
        self._counted.add(holder)
        for index, has in enumerate(self._has[holder]):
            if has:
                self._shift(index, +1)

    def has(self, holder: PeerId, index: int) -> bool:
        """Whether ``holder`` says that it has a chunk."""
        return bool(self._has[holder][index])

    def add_chunk(self, holder: PeerId, index: int) -> None:
        """Note that ``holder`` has a chunk."""
        if self._has[holder][index]:
            return
        if holder in self._counted:
            self._shift(index, +1)
        self._has[holder][index] = 1
        if self._is_open[index]:
            self._bag(holder, index).add(index)

    def remove_chunk(self, holder: PeerId, index: int) -> None:
        """Note that ``holder`` does not have a chunk after all."""
        if not self._has[holder][index]:
            return
        if self._is_open[index]:
            self._bag(holder, index).remove(index)
        self._has[holder][index] = 0
        if holder in self._counted:
            self._shift(index, -1)

    def open(self, index: int) -> None:
        """Note that a chunk is to be asked for."""
        if not self._is_open[index]:
            self._is_open[index] = 1
            for holder, has in self._has.items():
                if has[index]:
                    self._bag(holder, index).add(index)

    def close(self, index: int) -> None:
        """Note that a chunk is not to be asked for: it has been, or it is here."""
        if self._is_open[index]:
            self._is_open[index] = 0
            for holder, has in self._has.items():
                if has[index]:
                    self._bag(holder, index).remove(index)

    def rarest(self, holder: PeerId) -> int | None:
        """Return the rarest open chunk that ``holder`` has; None if there is none."""
        bags = self._bags[holder]
        first = min((rarity for rarity, bag in bags.items() if bag), default=None)
        return None if first is None else bags[first].draw(self._rng)

    def _bag(self, holder: PeerId, index: int) -> Bag:
        """Return the bag a chunk is in: they are drawn from in the order of their keys."""
        return self._bags[holder].setdefault(self._rarity[index], Bag())

    def _shift(self, index: int, by: int) -> None:
        """Change a chunk's rarity, and move it to the bags of the new one."""
        holders = [h for h, has in self._has.items() if has[index]] if self._is_open[index] else []
        for holder in holders:
            self._bag(holder, index).remove(index)
        self._rarity[index] += by
        for holder in holders:
            self._bag(holder, index).add(index)
