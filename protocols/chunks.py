"""Chunk transfer between peers; specification: ``docs/specs/chunks.md``.

The downloader opens a stream per payload and holder, and asks; the holder
answers, and tells unasked of chunks that it has come to hold since. A holder
offers only what it has verified.
"""

from typing import Annotated, Final

import msgspec

from protocols.codec import Message
from protocols.manifest import MAX_CHUNK_BYTES, MAX_CHUNKS, Digest
from protocols.reasons import Reason

PROTOCOL_ID: Final = "/echo2/chunks/1.0.0"
MAX_REQUEST_BYTES: Final = 1024
MAX_REPLY_BYTES: Final = MAX_CHUNKS * 32 + 1024
"""The longest answer is a list of hashes; a chunk with its header is shorter."""
MAX_OUTSTANDING: Final = 4
"""Requests one downloader may have open at one holder; more is a protocol violation."""

ChunkIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHUNKS)]


class Open(Message, frozen=True, tag="open"):
    """First message of a stream: which payload it is about."""

    root_sha256: Digest


class WantHashes(Message, frozen=True, tag="want_hashes"):
    """Ask for the list of chunk hashes."""


class WantChunk(Message, frozen=True, tag="want_chunk"):
    """Ask for one chunk."""

    index: ChunkIndex


class Holding(Message, frozen=True, tag="holding"):
    """First answer: what the holder has now; bit i (least significant first) is chunk i."""

    bitmap: Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNKS // 8 + 1)]
    has_hashes: bool


class Have(Message, frozen=True, tag="have"):
    """Chunks that the holder has come to hold since."""

    indices: Annotated[tuple[ChunkIndex, ...], msgspec.Meta(min_length=1, max_length=4096)]


class Hashes(Message, frozen=True, tag="hashes"):
    """The hashes of all chunks, 32 bytes each; SHA-256 of it is the payload's root."""

    sha256s: Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNKS * 32)]


class Chunk(Message, frozen=True, tag="chunk"):
    """One chunk."""

    index: ChunkIndex
    data: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_CHUNK_BYTES)]


class Refused(Message, frozen=True, tag="refused"):
    """A request that will not be answered otherwise."""

    reason: Reason
    index: ChunkIndex | None = None


Request = Open | WantHashes | WantChunk
Reply = Holding | Have | Hashes | Chunk | Refused
