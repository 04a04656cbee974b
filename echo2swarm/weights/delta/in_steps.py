"""Long work in worker threads, some steps at a time: it can be cancelled between them."""

from collections.abc import Generator
from contextlib import closing
from typing import Final

import trio

SLICE_STEPS: Final = 8
"""Steps between two looks at whether the work is still wanted."""


async def run_in_steps(work: Generator[None, None, None], *, limiter: trio.CapacityLimiter) -> None:
    """Run a generator to its end in worker threads; the event loop goes on meanwhile.

    When this is cancelled, the generator is closed after the step it is at.
    """
    with closing(work):
        while not await trio.to_thread.run_sync(_slice, work, limiter=limiter):
            pass


def _slice(work: Generator[None, None, None]) -> bool:
    """Do some steps; return whether those were the last."""
    return any(next(work, True) for _ in range(SLICE_STEPS))
