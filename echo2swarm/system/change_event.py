"""An event that can be set again and again: it wakes all tasks that wait for a change."""

import trio


class ChangeEvent:
    """Notified after each change of some state; a task that waits looks at the state again.

    Take :attr:`next_change` *before* looking, and wait on it after: no change is missed.
    """

    def __init__(self) -> None:
        self._next_change = trio.Event()

    @property
    def next_change(self) -> trio.Event:
        """The event that the next :meth:`notify` sets."""
        return self._next_change

    def notify(self) -> None:
        """Wake every task that waits."""
        self._next_change.set()
        self._next_change = trio.Event()


async def wait_any(*events: trio.Event) -> None:
    """Return when one of ``events`` is set."""

    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)
