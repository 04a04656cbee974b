"""Byte strings in a delta: each as long as its reader knows before, compressed or as it is.

A section is its stored length (4 bytes, little endian) and as many bytes. Stored
as long as it really is, it stands there as it is; stored shorter, it is one zstd
frame. Nobody can therefore make a reader allocate more than the block it is at.
"""

import struct
from typing import BinaryIO, Final

import zstandard

from echo2swarm.weights.delta.errors import BadDeltaError

LEVEL: Final = 3
FAST_LEVEL: Final = 1
"""For what is long and compresses badly whatever is tried."""
_LENGTH: Final = struct.Struct("<I")


class Compressor:
    """Writes sections; one per thread."""

    def __init__(self) -> None:
        self._best = zstandard.ZstdCompressor(level=LEVEL)
        self._fast = zstandard.ZstdCompressor(level=FAST_LEVEL)

    def section(self, data: bytes | memoryview, *, is_fast: bool = False) -> bytes:
        """Return ``data`` as a section."""
        packed = (self._fast if is_fast else self._best).compress(data)
        stored = packed if len(packed) < len(data) else bytes(data)
        return _LENGTH.pack(len(stored)) + stored


class Decompressor:
    """Reads sections; one per thread."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()

    def section(self, source: BinaryIO, size_bytes: int) -> bytes:
        """Return the section of ``size_bytes`` that comes next in ``source``.

        Raises:
            BadDeltaError: something else comes.
        """
        (num_stored,) = _LENGTH.unpack(read_exactly(source, _LENGTH.size))
        if num_stored > size_bytes:
            raise BadDeltaError(f"a section of {num_stored} bytes where {size_bytes} are the most")
        stored = read_exactly(source, num_stored)
        if num_stored == size_bytes:
            return stored
        try:
            # What the frame says of its own size decides what is allocated.
            told_bytes = zstandard.frame_content_size(stored)
            if told_bytes != size_bytes:
                raise BadDeltaError(f"a section of {told_bytes} bytes where {size_bytes} must be")
            data: bytes = self._zstd.decompress(stored, allow_extra_data=False)
        except zstandard.ZstdError as exc:
            raise BadDeltaError(f"a section that is no zstd frame: {exc}") from None
        return data


def read_exactly(source: BinaryIO, num_bytes: int) -> bytes:
    """Return the next bytes of ``source``.

    Raises:
        BadDeltaError: there are not so many.
    """
    data = source.read(num_bytes)
    if len(data) != num_bytes:
        raise BadDeltaError("it ends too early")
    return data
