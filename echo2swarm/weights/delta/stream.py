"""A delta file: what it is a delta of, and one record for each block of the weights."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from echo2swarm.weights.delta.blocks import Change, decode_block, encode_block
from echo2swarm.weights.delta.errors import BadDeltaError
from echo2swarm.weights.delta.sections import Compressor, Decompressor, read_exactly

MAGIC: Final = b"echo2x1\n"
BLOCK_BYTES: Final = 4 * 1024 * 1024
"""What one step works on: fits in the cache of a core, and is long enough to compress."""
MIN_BLOCK_BYTES: Final = 4096
MAX_BLOCK_BYTES: Final = 8 * 1024 * 1024
WORD_SIZES: Final = frozenset({2, 4})
_HEADER: Final = struct.Struct("<8sIIQ32s32s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a delta file says of itself."""

    word_bytes: int
    block_bytes: int
    """All blocks but the last have this size; a multiple of 8."""
    size_bytes: int
    """Of the weights, which a delta never changes."""
    base_root: bytes
    """The payload it applies to."""
    result_root: bytes
    """The payload that comes of it."""

    @property
    def num_blocks(self) -> int:
        """How many records follow."""
        return -(-self.size_bytes // self.block_bytes)

    def block_length(self, index: int) -> int:
        """Return how many bytes of the weights block ``index`` is."""
        return min(self.block_bytes, self.size_bytes - index * self.block_bytes)

    def num_words(self, index: int) -> int:
        """Return how many words block ``index`` has; the last may be filled up with zeros."""
        return -(-self.block_length(index) // self.word_bytes)


class DeltaWriter:
    """Writes a delta file, block after block."""

    def __init__(self, target: BinaryIO, header: Header) -> None:
        self._target = target
        self._compressor = Compressor()
        self.num_bytes = target.write(
            _HEADER.pack(
                MAGIC,
                header.word_bytes,
                header.block_bytes,
                header.size_bytes,
                header.base_root,
                header.result_root,
            )
        )

    def add(self, change: Change) -> None:
        """Write the next block's change."""
        self.num_bytes += self._target.write(encode_block(change, self._compressor))


def read_header(source: BinaryIO) -> Header:
    """Read how a delta file begins.

    Raises:
        BadDeltaError: it is none, or of a kind that is not known here.
    """
    magic, word_bytes, block_bytes, size_bytes, base_root, result_root = _HEADER.unpack(
        read_exactly(source, _HEADER.size)
    )
    if magic != MAGIC:
        raise BadDeltaError("it does not begin as a delta does")
    if word_bytes not in WORD_SIZES:
        raise BadDeltaError(f"words of {word_bytes} bytes")
    if not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES or block_bytes % 8:
        raise BadDeltaError(f"blocks of {block_bytes} bytes")
    return Header(
        word_bytes=word_bytes,
        block_bytes=block_bytes,
        size_bytes=size_bytes,
        base_root=base_root,
        result_root=result_root,
    )


def read_changes(source: BinaryIO, header: Header) -> Iterator[Change]:
    """Yield the change of each block of a file whose header has been read.

    Raises:
        BadDeltaError: a record is malformed, one is missing, or something follows the last.
    """
    decompressor = Decompressor()
    for index in range(header.num_blocks):
        yield decode_block(
            source,
            decompressor,
            num_words=header.num_words(index),
            word_bytes=header.word_bytes,
        )
    if source.read(1):
        raise BadDeltaError("something follows its last block")
