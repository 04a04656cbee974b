"""The source's side of a broadcast: one :class:`Seeder` per payload, fed by its streams."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final

import trio

from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.transfer.seeder import ChunkOffer, Seeder, SeederSettings
from protocols.ids import PeerId

SLOW_BYTES_PER_S: Final = 100_000.0
"""On a link as slow as this, passing on a chunk is not taken for hoarding."""
MIN_STALL_S: Final = 2.0
LONGEST_SLEEP_S: Final = 3600.0

UploadRateOf = Callable[[PeerId], float | None]
"""Returns a peer's measured upload in bytes per second; None if it is not known."""


class SeedingSession:
    """The deal of one payload: who sits at it, and what was offered them."""

    def __init__(self, payload: Payload, rng: random.Random, upload_rate_of: UploadRateOf) -> None:
        self._upload_rate_of = upload_rate_of
        stall_s = max(MIN_STALL_S, payload.ref.chunk_bytes / SLOW_BYTES_PER_S)
        self._dealer = Seeder(
            num_chunks=payload.ref.num_chunks,
            rng=rng,
            settings=SeederSettings(min_stall_s=stall_s, max_wait_s=max(10.0, stall_s)),
        )
        self._seats: dict[PeerId, Leecher] = {}
        self._look_at_s = -inf
        """When time next brings something; shared, so that many seats look no more often."""

    @property
    def is_empty(self) -> bool:
        """Whether nobody is left."""
        return not self._seats

    @contextmanager
    def seat(self, peer: PeerId, held: Sequence[int]) -> Iterator["Leecher"]:
        """Take part as long as the context lasts; a peer's newer stream replaces its older."""
        seat = Leecher(peer, self._dealer, self)
        if peer in self._seats:
            self.pass_on(self._dealer.left(peer, trio.current_time()))
        self._seats[peer] = seat
        weight = self._upload_rate_of(peer)
        self.pass_on(self._dealer.joined(peer, held, weight=weight, now_s=trio.current_time()))
        self._look_at_s = trio.current_time()
        try:
            yield seat
        finally:
            if self._seats.get(peer) is seat:
                del self._seats[peer]
                self.pass_on(self._dealer.left(peer, trio.current_time()))

    async def watch(self) -> None:
        """Let time pass for the deal, until cancelled; every seat does it, for all of them."""
        while True:
            now_s = trio.current_time()
            if self._look_at_s <= now_s:
                self.pass_on(self._dealer.deadline_passed(now_s))
                self._look_at_s = min(self._dealer.next_deadline_s(now_s), now_s + LONGEST_SLEEP_S)
            await trio.sleep_until(self._look_at_s)

    def pass_on(self, offers: Sequence[ChunkOffer]) -> None:
        """Tell the seats what they are offered."""
        for offer in offers:
            if (seat := self._seats.get(offer.peer)) is not None:
                seat.add_news(offer.indices)


class Leecher:
    """The availability that one downloader sees while a payload is super-seeded."""

    def __init__(self, peer: PeerId, dealer: Seeder, table: SeedingSession) -> None:
        self._peer = peer
        self._dealer = dealer
        self._table = table
        self._news: list[int] = []
        self._has_news = trio.Event()

    def take_news(self) -> list[int]:
        """Return what it was offered since the last call."""
        news, self._news = self._news, []
        self._has_news = trio.Event()
        return news

    async def wait_for_news(self) -> None:
        """Return when it is offered something."""
        await self._has_news.wait()

    def may_have(self, index: int) -> bool:
        """Whether it was offered a chunk."""
        return self._dealer.is_offered(self._peer, index)

    def asked(self, index: int) -> None:
        """Note that it asks for a chunk."""
        self._table.pass_on(self._dealer.asked(self._peer, index, trio.current_time()))

    def sent(self, index: int) -> None:
        """Note that it was sent a chunk, or won't be."""
        self._table.pass_on(self._dealer.sent(self._peer, index, trio.current_time()))

    def held(self, indices: Sequence[int]) -> None:
        """Note what it says it has come to hold."""
        self._table.pass_on(self._dealer.held(self._peer, indices, trio.current_time()))

    async def watch(self) -> None:
        """Let time pass for the deal, until cancelled."""
        await self._table.watch()

    def add_news(self, indices: Sequence[int]) -> None:
        """Note an offer to be told."""
        self._news.extend(indices)
        self._has_news.set()
