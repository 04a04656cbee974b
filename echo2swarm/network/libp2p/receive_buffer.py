"""What has arrived on one stream and nobody has received yet."""

from collections import deque
from typing import Final

MIN_PIECE_BYTES: Final = 4096
"""Less than this is copied to what came before it, lest a hostile peer fill memory with stubs."""


class ReceiveBuffer:
    """Bytes in order, kept as the pieces they came in, and copied once when they are taken.

    One buffer that grows by each piece and shrinks by each frame has its memory moved,
    given back and faulted in again all the time.

    Args:
        buffer: what is here already. The library appends to it what it takes itself.
    """

    def __init__(self, buffer: bytearray) -> None:
        self._pieces: deque[memoryview] = deque()
        self._num_piece_bytes = 0
        self._buffer = buffer

    def __len__(self) -> int:
        return self._num_piece_bytes + len(self._buffer)

    def add(self, message: bytes, start: int, end: int) -> None:
        """Append a part of a message, which must not change any more."""
        piece = memoryview(message)[start:end]
        if len(piece) < MIN_PIECE_BYTES:
            self._buffer += piece
            return
        self._flush()
        # A part keeps the whole message in memory: not for a small part.
        self._append(piece if 2 * len(piece) >= len(message) else memoryview(bytes(piece)))

    def take(self, num_bytes: int) -> bytes:
        """Remove and return the first ``num_bytes``, which must be here."""
        self._flush()
        taken, missing = [], num_bytes
        while missing:
            piece = self._pieces.popleft()
            if len(piece) > missing:
                self._pieces.appendleft(piece[missing:])
                piece = piece[:missing]
            taken.append(piece)
            missing -= len(piece)
        self._num_piece_bytes -= num_bytes
        return b"".join(taken)

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()
        self._num_piece_bytes = 0
        self._buffer.clear()

    def _flush(self) -> None:
        if self._buffer:
            self._append(memoryview(bytes(self._buffer)))
            self._buffer.clear()

    def _append(self, piece: memoryview) -> None:
        self._pieces.append(piece)
        self._num_piece_bytes += len(piece)
