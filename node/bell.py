"""Wakes whoever waits for something to have changed."""

import trio


class Bell:
    """Take :attr:`ring` *before* looking at what may change, and wait on it after."""

    def __init__(self) -> None:
        self._ring = trio.Event()

    @property
    def ring(self) -> trio.Event:
        """Set at the next change."""
        return self._ring

    def wake(self) -> None:
        """Wake everybody who waits."""
        self._ring.set()
        self._ring = trio.Event()
