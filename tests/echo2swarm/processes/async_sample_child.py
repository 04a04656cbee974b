"""The sample child, answered by an event loop."""

import asyncio

import msgspec

from echo2swarm.processes.async_worker import serve_parent_async
from echo2swarm.processes.worker import OnProgress
from tests.echo2swarm.processes.sample_child import (
    Add,
    Exit,
    Fail,
    FailAsExpected,
    Sleep,
    SleepUntilCancelled,
    StartOther,
    Sum,
)
from tests.echo2swarm.processes.sample_child import handle as handle_at_once

ended: list[SleepUntilCancelled] = []
slept: list[Sleep] = []
NUM_CANCELLED, NUM_SLEPT = -1, -2
"""Added to something, these ask how many calls came to that."""


async def handle(
    call: Add | Fail | FailAsExpected | Sleep | SleepUntilCancelled | Exit | StartOther,
    on_progress: OnProgress,
) -> msgspec.Struct:
    if isinstance(call, SleepUntilCancelled):
        on_progress("sleeping", 0, 1)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(call)
    if isinstance(call, Add) and call.a < 0:
        return Sum(len(ended if call.a == NUM_CANCELLED else slept))
    if isinstance(call, Sleep):
        await asyncio.sleep(call.seconds)
        slept.append(call)
        return Sum(0)
    return handle_at_once(call, on_progress)


if __name__ == "__main__":
    calls = Add | Fail | FailAsExpected | Sleep | SleepUntilCancelled | Exit | StartOther
    asyncio.run(serve_parent_async(calls, handle, cancellable=(SleepUntilCancelled,)))  # type: ignore[arg-type]
