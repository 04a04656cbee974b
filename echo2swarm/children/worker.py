"""The child's side: answer calls one after the other until the parent is gone.

A thread reads the socket, so that the child ends within moments of its parent's
death, however that came about, even in the middle of a long computation.
"""

import os
import queue
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

import msgspec

from echo2swarm.children.wire import (
    MAX_FRAME_BYTES,
    SOCKET_FD_VARIABLE,
    Answer,
    Call,
    Failure,
    Kind,
    Progress,
)
from protocols.framing import FrameDecoder, frame

R = TypeVar("R")

OnProgress = Callable[[str, float, float], None]
"""Called with what is being done, how much is done, and how much there is in all."""


@dataclass(frozen=True, slots=True)
class Later:
    """What finds the answer to a call in a thread of its own; later calls do not wait for it."""

    finish: Callable[[], msgspec.Struct]


def serve(calls: type[R], handle: Callable[[R, OnProgress], msgspec.Struct | Later]) -> None:
    """Answer calls until the parent closes the socket; then end the process.

    Args:
        calls: the struct, or the tagged union of structs, that calls are.
        handle: computes the answer. What it raises is sent to the parent as an error, and
            the child goes on; state must therefore be as before the call.
    """
    # The terminal's Ctrl-C is for the parent, which decides what becomes of the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(os.environ.pop(SOCKET_FD_VARIABLE)))
    outbox = _Outbox(connection)
    inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    decoder = msgspec.msgpack.Decoder(calls)
    while True:
        call = inbox.get()

        def on_progress(what: str, done: float, total: float, call_id: int = call.call_id) -> None:
            outbox.send(call_id, Kind.PROGRESS, Progress(what, done, total))

        _answer(outbox, call.call_id, partial(_handled, handle, decoder, call, on_progress))


def _handled(
    handle: Callable[[R, OnProgress], msgspec.Struct | Later],
    decoder: "msgspec.msgpack.Decoder[R]",
    call: Call,
    on_progress: OnProgress,
) -> msgspec.Struct | Later:
    return handle(decoder.decode(call.body), on_progress)


def _answer(outbox: "_Outbox", call_id: int, work: Callable[[], msgspec.Struct | Later]) -> None:
    try:
        result = work()
    except Exception as exc:
        with suppress(OSError):  # the log may lie on the full disk that this is about
            traceback.print_exc()
        outbox.send(call_id, Kind.ERROR, Failure(type(exc).__name__, str(exc)[:4000]))
        return
    if isinstance(result, Later):
        arguments = (outbox, call_id, result.finish)
        threading.Thread(target=_answer, args=arguments, daemon=True).start()
    else:
        outbox.send(call_id, Kind.RESULT, result)


def _read(connection: socket.socket, inbox: "queue.SimpleQueue[Call]") -> None:
    frames = FrameDecoder(max_bytes=MAX_FRAME_BYTES)
    decoder = msgspec.msgpack.Decoder(Call)
    while True:
        try:
            data = connection.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            end_orphan()
        for payload in frames.feed(data):
            inbox.put(decoder.decode(payload))


def end_orphan() -> NoReturn:
    """End this process, and those it has started: the parent is gone, nobody needs an answer."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class _Outbox:
    """Sends whole frames, from whatever thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, call_id: int, kind: Kind, body: msgspec.Struct) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode(body))
        data = frame(msgspec.msgpack.encode(Answer(call_id, kind, raw)))
        try:
            with self._lock:
                self._connection.sendall(data)
        except OSError:
            end_orphan()
