"""Arrays of numbers as bytes: compact on the wire, and checked when unpacked."""

import sys
from array import array
from collections.abc import Sequence

from protocols.errors import MalformedMessageError
from protocols.reasons import Reason


def _swapped_if_big_endian(values: "array[int] | array[float]") -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Return token ids as little-endian unsigned 32-bit integers."""
    return _swapped_if_big_endian(array("I", tokens))


def unpack_tokens(data: bytes) -> list[int]:
    """Return the token ids that :func:`pack_tokens` packed.

    Raises:
        MalformedMessageError: not a whole number of 32-bit integers.
    """
    return [int(x) for x in _unpack(data, "I")]


def num_packed(data: bytes) -> int:
    """Return how many numbers are packed in ``data``."""
    return len(data) // 4


def pack_floats(values: Sequence[float]) -> bytes:
    """Return numbers as little-endian 32-bit floats."""
    return _swapped_if_big_endian(array("f", values))


def unpack_floats(data: bytes) -> list[float]:
    """Return the numbers that :func:`pack_floats` packed; they may be NaN or infinite.

    Raises:
        MalformedMessageError: not a whole number of 32-bit floats.
    """
    return [float(x) for x in _unpack(data, "f")]


def _unpack(data: bytes, typecode: str) -> "array[int] | array[float]":
    if len(data) % 4:
        raise MalformedMessageError(
            f"array of {len(data)} bytes is not made of 4-byte items", reason=Reason.WRONG_SHAPE
        )
    values: array[int] | array[float] = array(typecode)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
