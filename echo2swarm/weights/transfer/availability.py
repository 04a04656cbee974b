"""What a holder offers one downloader: all it holds, or (see ``dealing``) what it deals it."""

from collections.abc import Sequence
from typing import Protocol

import trio

from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.transfer.have_interval import news_s
from protocols.chunks import MAX_HAVE_INDICES


class Availability(Protocol):
    """One holder's offers to one downloader."""

    def take_news(self) -> list[int]:
        """Return the chunks that have come to be offered since the last call."""
        ...

    async def wait_for_news(self) -> None:
        """Return when :meth:`take_news` has something to return."""
        ...

    def may_have(self, index: int) -> bool:
        """Whether the downloader may ask for a chunk."""
        ...

    def asked(self, index: int) -> None:
        """Note that it asks for a chunk."""
        ...

    def sent(self, index: int) -> None:
        """Note that it was sent a chunk, or won't be."""
        ...

    def held(self, indices: Sequence[int]) -> None:
        """Note what it says it has come to hold."""
        ...

    async def watch(self) -> None:
        """Let time pass, until cancelled."""
        ...


class FullAvailability:
    """Offers everything that is held, and what comes to be."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._num_told = 0
        self._began_s = trio.current_time()

    def take_news(self) -> list[int]:
        """Return the chunks that have come to be held since the last call."""
        news = self._payload.arrived_since(self._num_told)
        self._num_told += len(news)
        return news

    async def wait_for_news(self) -> None:
        """Return when there is something to tell, and nothing more to come in a moment."""
        if self._num_told == self._payload.ref.num_chunks:
            await trio.sleep_forever()
        await self._payload.wait_for_news(self._num_told)
        if not self._payload.is_whole:
            await trio.sleep(news_s(trio.current_time() - self._began_s))

    def may_have(self, index: int) -> bool:
        """Whether a chunk is held."""
        return self._payload.holds(index)

    def asked(self, index: int) -> None:
        """Note nothing: whoever asks gets."""

    def sent(self, index: int) -> None:
        """Note nothing: nobody else waited for it."""

    def held(self, indices: Sequence[int]) -> None:
        """Note nothing: it changes no offer."""

    async def watch(self) -> None:
        """Do nothing: no offer depends on time."""
        await trio.sleep_forever()


def in_messages(indices: Sequence[int]) -> list[tuple[int, ...]]:
    """Return indices in as many pieces as messages are needed."""
    return [
        tuple(indices[i : i + MAX_HAVE_INDICES]) for i in range(0, len(indices), MAX_HAVE_INDICES)
    ]
