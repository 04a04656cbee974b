"""What changed in one block of the weights, as arrays and as bytes.

A block is a run of words, each as wide as a number in these weights. Its change
is the XOR of old and new, which has three properties that patching wants: it is
zero where nothing changed, small where little did, and two changes in a row are
the XOR of both.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from echo2swarm.weights.delta.errors import BadDeltaError
from echo2swarm.weights.delta.sections import Compressor, Decompressor, read_exactly

Words = NDArray[Any]
"""Unsigned integers of 2 or 4 bytes, little endian."""
Positions = NDArray[np.int32]

ESCAPE: Final = 255
"""A gap byte that says: this many words further, and no change yet."""
DENSE_SHARE: Final = 0.4
"""From this share of changed words on, all words take less room than positions and values do."""
_SPARSE_COUNTS: Final = struct.Struct("<II")


class BlockKind(IntEnum):
    """The first byte of a block's record."""

    SAME = 0
    SPARSE = 1
    DENSE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """The words at ``positions``, increasing, change by ``values``; an empty one changes none."""

    positions: Positions
    values: Words


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """All words change by ``values``, some perhaps by zero."""

    values: Words


Change = Sparse | Dense


def word_type(word_bytes: int) -> np.dtype[Any]:
    """Return the type of a word."""
    return np.dtype(f"<u{word_bytes}")


def change_between(
    old: NDArray[np.uint64], new: NDArray[np.uint64], *, num_words: int, word_bytes: int
) -> Change:
    """Return what changed in a block's words.

    Args:
        old: the block as it was, eight bytes an item, filled up with zeros; overwritten.
        new: the same as it is now.
        num_words: how many words it has without what it is filled up with.
        word_bytes: how wide they are.
    """
    dtype = word_type(word_bytes)
    changed = np.bitwise_xor(old, new, out=old)  # new memory costs as much again
    # Eight bytes at a time, since most are the same; then word by word among the others.
    where = np.flatnonzero(changed != 0)
    if where.size > DENSE_SHARE * changed.size:
        return _of_words(changed.view(dtype)[:num_words])
    words_per_item = 8 // word_bytes
    items = changed[where].view(dtype)
    among = np.flatnonzero(items != 0)
    positions = where[among // words_per_item] * words_per_item + among % words_per_item
    return _shorter(positions.astype(np.int32), items[among], num_words)


def _of_words(values: Words) -> Change:
    positions = np.flatnonzero(values != 0)
    if positions.size > DENSE_SHARE * values.size:
        return Dense(values)
    return Sparse(positions.astype(np.int32), values[positions])


def _shorter(positions: Positions, values: Words, num_words: int) -> Change:
    if positions.size <= DENSE_SHARE * num_words:
        return Sparse(positions, values)
    words = np.zeros(num_words, values.dtype)
    words[positions] = values
    return Dense(words)


def merged(first: Change, second: Change, *, num_words: int) -> Change:
    """Return the change that is ``first`` and then ``second``."""
    match first, second:
        case Sparse(), Sparse():
            return _shorter(*_merged_sparse(first, second), num_words)
        case Dense(values), Dense(others):
            return _of_words(np.bitwise_xor(values, others))
        case Dense(values), Sparse(positions, others):
            values = values.copy()
            values[positions] ^= others
            return _of_words(values)
        case _:
            return merged(second, first, num_words=num_words)


def _merged_sparse(first: Sparse, second: Sparse) -> tuple[Positions, Words]:
    positions = np.concatenate((first.positions, second.positions))
    values = np.concatenate((first.values, second.values))
    order = np.argsort(positions, kind="stable")  # two runs in order: one pass
    positions, values = positions[order], values[order]
    is_twin = np.flatnonzero(positions[1:] == positions[:-1])
    values[is_twin] ^= values[is_twin + 1]
    keep = values != 0
    keep[is_twin + 1] = False
    return positions[keep], values[keep]


def apply(change: Change, words: Words) -> None:
    """Change ``words`` in place."""
    match change:
        case Sparse(positions, values):
            words[positions] ^= values
        case Dense(values):
            np.bitwise_xor(words, values, out=words)


def encode_block(change: Change, compressor: Compressor) -> bytes:
    """Return the record of a change."""
    match change:
        case Sparse(positions, values) if not positions.size:
            return bytes((BlockKind.SAME,))
        case Sparse(positions, values):
            gaps = _gaps_of(positions)
            return b"".join(
                (
                    bytes((BlockKind.SPARSE,)),
                    _SPARSE_COUNTS.pack(positions.size, gaps.size),
                    compressor.section(gaps.data),
                    *(compressor.section(plane) for plane in _planes_of(values)),
                )
            )
        case Dense(values):
            planes = (compressor.section(plane, is_fast=True) for plane in _planes_of(values))
            return b"".join((bytes((BlockKind.DENSE,)), *planes))


def decode_block(
    source: BinaryIO, decompressor: Decompressor, *, num_words: int, word_bytes: int
) -> Change:
    """Return the change whose record comes next.

    Raises:
        BadDeltaError: it is not the record of a block of ``num_words``.
    """
    kind = read_exactly(source, 1)[0]
    dtype = word_type(word_bytes)
    if kind == BlockKind.SAME:
        return Sparse(np.empty(0, np.int32), np.empty(0, dtype))
    if kind == BlockKind.DENSE:
        planes = [decompressor.section(source, num_words) for _ in range(word_bytes)]
        return Dense(_from_planes(planes, dtype))
    if kind != BlockKind.SPARSE:
        raise BadDeltaError(f"a record of kind {kind}")
    num_changed, num_gaps = _SPARSE_COUNTS.unpack(read_exactly(source, _SPARSE_COUNTS.size))
    # Each gap byte leads at least one word further.
    if not 0 < num_changed <= num_gaps <= num_words:
        raise BadDeltaError(f"{num_changed} changes in {num_gaps} gaps among {num_words} words")
    positions = _positions_of(decompressor.section(source, num_gaps))
    planes = [decompressor.section(source, num_changed) for _ in range(word_bytes)]
    if positions.size != num_changed or positions[-1] >= num_words:
        raise BadDeltaError("a change beyond the end of its block")
    return Sparse(positions, _from_planes(planes, dtype))


def _gaps_of(positions: Positions) -> NDArray[np.uint8]:
    """Return, per change, escapes and the unchanged words since the one before."""
    gaps = np.diff(positions, prepend=np.int32(-1)) - 1
    num_escapes, rest = np.divmod(gaps, ESCAPE)
    ends = np.cumsum(num_escapes + 1) - 1
    coded = np.full(int(ends[-1]) + 1, ESCAPE, np.uint8)
    coded[ends] = rest
    return coded


def _positions_of(coded: bytes) -> Positions:
    gaps = np.frombuffer(coded, np.uint8)
    is_end = gaps != ESCAPE
    reached: Positions = np.cumsum(gaps + is_end.astype(np.int32), dtype=np.int32)
    positions: Positions = reached[is_end] - np.int32(1)
    return positions


def _planes_of(values: Words) -> list[memoryview]:
    """Return the lowest bytes of all words, then the next, and so on: alike stands by alike."""
    planes = values.view(np.uint8).reshape(values.size, values.itemsize)
    return [np.ascontiguousarray(planes[:, i]).data for i in range(values.itemsize)]


def _from_planes(planes: list[bytes], dtype: np.dtype[Any]) -> Words:
    together = np.empty((len(planes[0]), len(planes)), np.uint8)
    for i, plane in enumerate(planes):
        together[:, i] = np.frombuffer(plane, np.uint8)
    words: Words = together.reshape(-1).view(dtype)
    return words
