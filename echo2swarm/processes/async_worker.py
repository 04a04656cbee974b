"""The child's side for libraries with an event loop: calls are answered as they finish.

Any number of calls is worked on at once, so that an engine may batch them as it likes.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from echo2swarm.processes.wire import (
    MAX_FRAME_BYTES,
    SOCKET_FD_VARIABLE,
    Call,
    CallProgress,
    Cancel,
    ChildReply,
    Failure,
    FrameKind,
    FromParent,
)
from echo2swarm.processes.worker import OnProgress, end_orphan, write_traceback
from protocols.framing import FrameDecoder, frame

R = TypeVar("R")

Handle = Callable[[R, OnProgress], Awaitable[msgspec.Struct]]


async def serve_parent_async(
    calls: type[R], handle: Handle[R], *, cancellable: tuple[type[msgspec.Struct], ...] = ()
) -> None:
    """Answer calls until the parent closes the socket; then end the process.

    Args:
        calls: the struct, or the tagged union of structs, that calls are.
        handle: computes the answer to one call, beside others. What it raises is sent to the
            parent as an error, and the child goes on.
        cancellable: calls whose ``handle`` is cancelled when nobody waits for the answer; others
            are answered all the same.
    """
    # The terminal's Ctrl-C is for the parent, which decides what becomes of the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(os.environ.pop(SOCKET_FD_VARIABLE)))
    # Not for processes that we start: as long as they had it, our death would not be seen.
    connection.set_inheritable(False)
    reader, writer = await asyncio.open_connection(sock=connection)
    server = _Server(writer, msgspec.msgpack.Decoder(calls), handle)
    frames = FrameDecoder(max_bytes=MAX_FRAME_BYTES)
    decoder: msgspec.msgpack.Decoder[FromParent] = msgspec.msgpack.Decoder(FromParent)
    working: dict[int, tuple[Call, asyncio.Task[None]]] = {}
    async with asyncio.TaskGroup() as tasks:
        while True:
            with suppress(ConnectionError):
                if data := await reader.read(1 << 20):
                    for payload in frames.feed(data):
                        match decoder.decode(payload):
                            case Call(call_id) as call:
                                task = tasks.create_task(server.answer(call))
                                working[call_id] = call, task
                                task.add_done_callback(partial(_forget, working, call_id))
                            case Cancel(call_id) if call_id in working:
                                call, task = working[call_id]
                                if server.is_one_of(call, cancellable):
                                    task.cancel()
                            case Cancel():
                                pass  # it was answered
                    continue
            end_orphan()


def _forget(
    working: dict[int, tuple[Call, "asyncio.Task[None]"]], call_id: int, _task: object
) -> None:
    del working[call_id]


class _Server:
    def __init__(
        self,
        writer: asyncio.StreamWriter,
        decoder: "msgspec.msgpack.Decoder[R]",
        handle: Handle[R],
    ) -> None:
        self._writer = writer
        self._decoder = decoder
        self._handle = handle

    def is_one_of(self, call: Call, kinds: tuple[type[msgspec.Struct], ...]) -> bool:
        """Whether the call is of these kinds; of none if it can't be read."""
        with suppress(msgspec.MsgspecError):
            return isinstance(self._decoder.decode(call.body), kinds)
        return False

    async def answer(self, call: Call) -> None:
        def on_progress(what: str, done: float, total: float) -> None:
            self._send(call.call_id, FrameKind.PROGRESS, CallProgress(what, done, total))

        try:
            result = await self._handle(self._decoder.decode(call.body), on_progress)
        except Exception as exc:
            write_traceback(exc)
            failure = Failure(type(exc).__name__, str(exc)[:4000])
            self._send(call.call_id, FrameKind.ERROR, failure)
        else:
            self._send(call.call_id, FrameKind.RESULT, result)
        with suppress(ConnectionError):
            await self._writer.drain()

    def _send(self, call_id: int, kind: FrameKind, body: msgspec.Struct) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode(body))
        self._writer.write(frame(msgspec.msgpack.encode(ChildReply(call_id, kind, raw))))
