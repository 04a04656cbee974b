"""Chunk transfer between peers; specification: ``docs/specs/chunks.md``.

The downloader opens a stream to each holder, names a payload, and asks; the holder
answers, and tells unasked of chunks that it has come to offer since. When it is done with
a payload, it may name another on the same stream. A holder
offers only what it has verified. The source of a payload offers less than it has:
it deals each chunk to one downloader first (:mod:`echo2swarm.weights.transfer.seeder`),
and is told what they hold, whoever they have it from.

Both sides' cores: :mod:`protocols.chunk_download` and :mod:`protocols.chunk_upload`.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec

from protocols.codec import Message, encode
from protocols.errors import LocalProtocolError, MalformedMessageError
from protocols.manifest import MAX_CHUNK_BYTES, MAX_CHUNKS, Digest
from protocols.reasons import Reason

PROTOCOL_ID: Final = "/echo2/chunks/2.1.0"
MAX_REQUEST_BYTES: Final = MAX_CHUNKS // 8 + 1024
"""The longest request is an opening with a bitmap."""
MAX_REPLY_BYTES: Final = MAX_CHUNKS * 32 + 1024
"""The longest answer is a list of hashes; a chunk with its header is shorter."""
MAX_OUTSTANDING: Final = 64
"""Requests one downloader may have open at one holder; more is a protocol violation."""

MAX_HAVE_INDICES: Final = 4096

Bitmap = Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNKS // 8 + 1)]
"""Bit i (least significant first) is chunk i."""
ChunkIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHUNKS)]


class OpenPayload(Message, frozen=True, tag="open"):
    """First message of a stream, and after :class:`DownloadDone`: which payload it is about now."""

    root_sha256: Digest
    held: Bitmap = b""
    """What the downloader has already; empty for nothing."""


class WantHashes(Message, frozen=True, tag="want_hashes"):
    """Ask for the list of chunk hashes."""


class WantChunk(Message, frozen=True, tag="want_chunk"):
    """Ask for one chunk."""

    index: ChunkIndex


class Held(Message, frozen=True, tag="held"):
    """Chunks that the downloader has come to hold since, whoever they came from; no request."""

    indices: Annotated[
        tuple[ChunkIndex, ...], msgspec.Meta(min_length=1, max_length=MAX_HAVE_INDICES)
    ]


class DownloadDone(Message, frozen=True, tag="done"):
    """The downloader wants no more of the payload, whatever it has asked for; no request."""


class Holding(Message, frozen=True, tag="holding"):
    """Answer to :class:`OpenPayload`: what the holder offers now."""

    bitmap: Bitmap
    has_hashes: bool


class Have(Message, frozen=True, tag="have"):
    """Chunks that the holder has come to offer since."""

    indices: Annotated[
        tuple[ChunkIndex, ...], msgspec.Meta(min_length=1, max_length=MAX_HAVE_INDICES)
    ]


class Hashes(Message, frozen=True, tag="hashes"):
    """The hashes of all chunks, 32 bytes each; SHA-256 of it is the payload's root."""

    sha256s: Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNKS * 32)]


class Chunk(Message, frozen=True, tag="chunk"):
    """One chunk."""

    index: ChunkIndex
    data: Annotated[memoryview, msgspec.Meta(min_length=1, max_length=MAX_CHUNK_BYTES)]


class ChunkRefused(Message, frozen=True, tag="refused"):
    """A request that will not be answered otherwise."""

    reason: Reason
    index: ChunkIndex | None = None


Request = OpenPayload | WantHashes | WantChunk | Held | DownloadDone
Reply = Holding | Have | Hashes | Chunk | ChunkRefused


def in_two_parts(index: int, data: bytes) -> tuple[bytes, bytes]:
    """Return what a :class:`Chunk` is encoded as in two parts, so that ``data`` is not copied."""
    one_byte = encode(Chunk(index, memoryview(b"\0")), max_bytes=MAX_REPLY_BYTES)
    head = one_byte.removesuffix(b"\xc4\x01\0")
    # The header of a binary string, https://github.com/msgpack/msgpack/blob/master/spec.md
    for marker, size_bytes in ((b"\xc4", 1), (b"\xc5", 2), (b"\xc6", 4)):
        if len(data) < 256**size_bytes:
            return head + marker + len(data).to_bytes(size_bytes, "big"), data
    raise LocalProtocolError(f"a chunk of {len(data)} bytes")


def bitmap_of(indices: Iterable[int], *, num_chunks: int) -> bytes:
    """Return the bitmap for these chunks."""
    bitmap = bytearray(-(-num_chunks // 8))
    for index in indices:
        bitmap[index // 8] |= 1 << index % 8
    return bytes(bitmap)


def indices_in(bitmap: bytes, *, num_chunks: int) -> Iterator[int]:
    """Yield the chunks that a peer's ``bitmap`` names, in order.

    Raises:
        MalformedMessageError: at once, if it is not a bitmap of ``num_chunks`` chunks.
    """
    if len(bitmap) != -(-num_chunks // 8):
        raise MalformedMessageError(f"bitmap of {len(bitmap)} bytes for {num_chunks} chunks")
    if num_chunks % 8 and bitmap[-1] >> num_chunks % 8:
        raise MalformedMessageError(f"bitmap names chunks beyond the last of {num_chunks}")
    return (
        8 * i + bit for i, byte in enumerate(bitmap) if byte for bit in range(8) if byte >> bit & 1
    )
