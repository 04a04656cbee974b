"""Wakes whoever waits for something to have changed."""

import trio


class ChangeEvent:
    """Rung after a change; whoever waits looks again.

    Take :attr:`next_ring` *before* looking, and wait on it after: nothing is missed.
    """

    def __init__(self) -> None:
        self._next_ring = trio.Event()

    @property
    def next_ring(self) -> trio.Event:
        """Set when the bell rings next."""
        return self._next_ring

    def ring(self) -> None:
        """Wake everybody who waits."""
        self._next_ring.set()
        self._next_ring = trio.Event()


async def wait_any(*events: trio.Event) -> None:
    """Return when one of ``events`` is set."""

    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)
