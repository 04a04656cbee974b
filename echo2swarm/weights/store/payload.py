"""One payload as this process knows it: which of its verified chunks are here."""

from pathlib import Path

import trio

from echo2swarm.weights.store.layout import FILES, HASH_BYTES
from protocols.chunks import bitmap_of
from protocols.manifest import PayloadRef


class Payload:
    """A payload in the store, growing or complete. Only its store changes it."""

    def __init__(self, ref: PayloadRef, folder: Path) -> None:
        self.ref = ref
        self.folder = folder
        self.hashes: bytes | None = None
        self.is_complete = False
        """Whole, checked, and renamed; False while it grows and after it was deleted."""
        self.num_pins = 0
        self._held = bytearray(ref.num_chunks)
        self._arrived: list[int] = []
        self._news = trio.Event()

    @property
    def root(self) -> bytes:
        """The payload's name."""
        return self.ref.root_sha256

    @property
    def files(self) -> Path:
        """The folder with its files. It moves when the payload becomes complete."""
        return self.folder / FILES

    @property
    def num_held(self) -> int:
        """How many verified chunks are here."""
        return len(self._arrived)

    @property
    def held_bytes(self) -> int:
        """How many verified bytes are here."""
        last = self.ref.num_chunks - 1
        short_by = self.ref.chunk_bytes - self.ref.chunk_span(last)[1] if self._held[last] else 0
        return self.num_held * self.ref.chunk_bytes - short_by

    @property
    def is_whole(self) -> bool:
        """Whether every chunk is here."""
        return self.num_held == self.ref.num_chunks

    def holds(self, index: int) -> bool:
        """Whether chunk ``index`` is here and verified."""
        return bool(self._held[index])

    def missing(self) -> list[int]:
        """Return the chunks that are not here."""
        return [index for index, held in enumerate(self._held) if not held]

    def bitmap(self) -> bytes:
        """Return what is here in the form that peers are told."""
        return bitmap_of(self._arrived, num_chunks=self.ref.num_chunks)

    def arrived_since(self, num_known: int) -> list[int]:
        """Return the chunks that came after the first ``num_known`` had been here."""
        return self._arrived[num_known:]

    async def wait_for_news(self, num_known: int) -> None:
        """Return once more than ``num_known`` chunks are here."""
        while self.num_held <= num_known:
            await self._news.wait()

    def add_hashes(self, hashes: bytes) -> None:
        """Note the list of chunk hashes, already checked."""
        if len(hashes) != HASH_BYTES * self.ref.num_chunks:
            raise ValueError(f"{len(hashes)} bytes of hashes for {self.ref.num_chunks} chunks")
        self.hashes = hashes

    def add_chunk(self, index: int) -> None:
        """Note that a chunk is on disk, verified."""
        if not self._held[index]:
            self._held[index] = 1
            self._arrived.append(index)
            self._news.set()
            self._news = trio.Event()
