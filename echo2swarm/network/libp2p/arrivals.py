"""Tells when it is time to look at how much lies unread."""

from typing import Final

import trio

LOOK_BYTES: Final = 4 * 1024 * 1024
"""After so much has arrived it is time to look again."""
LOOK_S: Final = 1.0


class Arrivals:
    """Tells when so much has arrived that it is time to look."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._is_time = trio.Event()

    def add(self, num_bytes: int) -> None:
        """Note what has arrived."""
        self._num_bytes += num_bytes
        if self._num_bytes >= LOOK_BYTES:
            self._is_time.set()

    async def wait(self) -> None:
        """Wait until it is time, which it is after a while whatever arrives."""
        with trio.move_on_after(LOOK_S):
            await self._is_time.wait()
        self._num_bytes = 0
        self._is_time = trio.Event()
