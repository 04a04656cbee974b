"""JSON lines between the benchmark and its processes."""

import os
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import trio

Record = dict[str, Any]
READ_BYTES: Final = 65_536


def say(event: str, **figures: object) -> None:
    """Tell the parent; called in its processes."""
    print(msgspec.json.encode({"event": event, **figures}).decode(), flush=True)


async def commands() -> AsyncIterator[Record]:
    """Yield what the parent says, until it closes our input or dies."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        async for record in records(stream):
            yield record


async def records(stream: trio.abc.ReceiveStream) -> AsyncIterator[Record]:
    """Yield each line of a stream."""
    buffer = b""
    while data := await stream.receive_some(READ_BYTES):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=Record)
