"""Length-delimited frames: a 4-byte big-endian length, then that many bytes.

Used on libp2p streams and on the local sockets to child processes alike.
"""

import struct
from collections.abc import Iterator
from typing import Final

from protocols.errors import MalformedMessageError
from protocols.reasons import Reason

HEADER_BYTES: Final = 4
_LENGTH = struct.Struct("!I")


def frame(payload: bytes) -> bytes:
    """Return ``payload`` with its length in front."""
    return _LENGTH.pack(len(payload)) + payload


def frame_length(header: bytes, *, max_bytes: int) -> int:
    """Return the payload length that a 4-byte ``header`` announces.

    Raises:
        MalformedMessageError: it is over ``max_bytes``; nothing of it should be read.
    """
    (length,) = _LENGTH.unpack(header)
    if length > max_bytes:
        raise MalformedMessageError(
            f"frame of {length} bytes announced, limit {max_bytes}", reason=Reason.TOO_LARGE
        )
    return int(length)


class FrameDecoder:
    """Bytes in, frames out; holds at most one incomplete frame."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield every frame that ``data`` completes.

        Raises:
            MalformedMessageError: a length over the limit was announced.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            length = frame_length(bytes(self._buffer[:HEADER_BYTES]), max_bytes=self._max_bytes)
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            yield payload

    @property
    def is_between_frames(self) -> bool:
        """Whether an end of stream here loses nothing."""
        return not self._buffer
