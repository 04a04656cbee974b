"""Let a program that has started others end them, whoever asks it to end."""

import signal
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

T = TypeVar("T")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signal(work: Callable[[], Awaitable[T]], *, on_signal: Callable[[], None]) -> T:
    """Return what ``work`` returns; Ctrl-C, a closed terminal and ``kill`` cancel it.

    Further signals find the ending under way, and change nothing.

    Args:
        work: cleans up when it is cancelled.
        on_signal: called at the first signal.

    Raises:
        KeyboardInterrupt: a signal came, and ``work`` has ended.
    """
    scope = trio.CancelScope()

    async def listen(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as numbers:
            task_status.started()
            async for _ in numbers:
                if not scope.cancel_called:
                    on_signal()
                    scope.cancel()

    results: list[T] = []
    async with trio.open_nursery() as nursery:
        # It listens until the work has ended, however long that takes after a signal.
        await nursery.start(listen)
        with scope:
            results.append(await work())
        nursery.cancel_scope.cancel()
    if not results:
        raise KeyboardInterrupt
    return results[0]
