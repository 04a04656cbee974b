"""The sample child, answered by an event loop."""

import asyncio

import msgspec

from echo2swarm.children.async_worker import serve
from echo2swarm.children.worker import OnProgress
from tests.echo2swarm.children.sample_child import Add, Exit, Fail, Sleep, StartOther, Sum
from tests.echo2swarm.children.sample_child import handle as handle_at_once


async def handle(
    call: Add | Fail | Sleep | Exit | StartOther, on_progress: OnProgress
) -> msgspec.Struct:
    if isinstance(call, Sleep):
        await asyncio.sleep(call.seconds)
        return Sum(0)
    return handle_at_once(call, on_progress)


if __name__ == "__main__":
    asyncio.run(serve(Add | Fail | Sleep | Exit | StartOther, handle))  # type: ignore[arg-type]
