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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

import msgspec

from echo2swarm.processes.wire import (
    MAX_FRAME_BYTES,
    SOCKET_FD_VARIABLE,
    TRACEBACKS_VARIABLE,
    Call,
    CallProgress,
    Cancel,
    ChildReply,
    Failure,
    FrameKind,
    FromParent,
)
from echo2swarm.system.errors import SwarmError
from echo2swarm.system.locales import escape_what_streams_lack
from protocols.framing import FrameDecoder, frame

R = TypeVar("R")

OnProgress = Callable[[str, float, float], None]
"""Called with what is being done, how much is done, and how much there is in all."""


@dataclass(frozen=True, slots=True)
class Later:
    """What finds the answer to a call in a thread of its own; later calls do not wait for it."""

    finish: Callable[[], msgspec.Struct]


class CallCancelledError(Exception):
    """Nobody waits for the answer to the call that is being worked on."""


class Cancellations:
    """Which calls nobody waits for: told by the thread that reads, asked by the one that works."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unanswered: set[int] = set()
        self._cancelled: set[int] = set()
        self._current: int | None = None

    def check(self) -> None:
        """Raise if the call that is being worked on is not wanted any more; cheap.

        Raises:
            CallCancelledError: it isn't; nothing may be left half done.
        """
        if self._current in self._cancelled:
            raise CallCancelledError

    def came(self, call_id: int) -> None:
        """Take note of a call."""
        with self._lock:
            self._unanswered.add(call_id)

    def cancel(self, call_id: int) -> None:
        """Take note that nobody waits for a call, unless it was answered."""
        with self._lock:
            if call_id in self._unanswered:
                self._cancelled.add(call_id)

    @contextmanager
    def working_on(self, call_id: int) -> Iterator[None]:
        """Have :meth:`check` speak of this call within the context."""
        self._current = call_id
        try:
            yield
        finally:
            self._current = None
            with self._lock:
                self._unanswered.discard(call_id)
                self._cancelled.discard(call_id)


def serve_parent(
    calls: type[R],
    handle: Callable[[R, OnProgress], msgspec.Struct | Later],
    *,
    cancellations: Cancellations | None = None,
) -> None:
    """Answer calls until the parent closes the socket; then end the process.

    Args:
        calls: the struct, or the tagged union of structs, that calls are.
        handle: computes the answer. What it raises is sent to the parent as an error, and
            the child goes on; state must therefore be as before the call.
        cancellations: asked by ``handle``, now and then, whether to go on. Without, every call
            is answered.
    """
    escape_what_streams_lack()
    # The terminal's Ctrl-C is for the parent, which decides what becomes of the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(os.environ.pop(SOCKET_FD_VARIABLE)))
    outbox = _Outbox(connection)
    inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
    cancels = cancellations or Cancellations()
    threading.Thread(target=_read, args=(connection, inbox, cancels), daemon=True).start()
    decoder = msgspec.msgpack.Decoder(calls)
    while True:
        call = inbox.get()

        def on_progress(what: str, done: float, total: float, call_id: int = call.call_id) -> None:
            outbox.send(call_id, FrameKind.PROGRESS, CallProgress(what, done, total))

        with cancels.working_on(call.call_id):
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
    except CallCancelledError:
        return
    except Exception as exc:
        write_traceback(exc)
        outbox.send(call_id, FrameKind.ERROR, Failure(type(exc).__name__, str(exc)[:4000]))
        return
    if isinstance(result, Later):
        arguments = (outbox, call_id, result.finish)
        threading.Thread(target=_answer, args=arguments, daemon=True).start()
    else:
        outbox.send(call_id, FrameKind.RESULT, result)


def write_traceback(exc: Exception) -> None:
    """Write what failed to our output, unless the parent tells all that a user needs to know."""
    if isinstance(exc, SwarmError) and not os.environ.get(TRACEBACKS_VARIABLE):
        return
    with suppress(OSError):  # the log may lie on the full disk that this is about
        traceback.print_exception(exc)


def _read(
    connection: socket.socket, inbox: "queue.SimpleQueue[Call]", cancels: Cancellations
) -> None:
    try:
        _take_calls(connection, inbox, cancels)
    except Exception:
        # Without this thread no call would ever be answered, nor the parent's death noticed.
        traceback.print_exc()
    finally:
        os._exit(1)


def _take_calls(
    connection: socket.socket, inbox: "queue.SimpleQueue[Call]", cancels: Cancellations
) -> None:
    frames = FrameDecoder(max_bytes=MAX_FRAME_BYTES)
    decoder: msgspec.msgpack.Decoder[FromParent] = msgspec.msgpack.Decoder(FromParent)
    while True:
        try:
            data = connection.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            end_orphan()
        for payload in frames.feed(data):
            match decoder.decode(payload):
                case Call() as call:
                    cancels.came(call.call_id)
                    inbox.put(call)
                case Cancel(call_id):
                    cancels.cancel(call_id)


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

    def send(self, call_id: int, kind: FrameKind, body: msgspec.Struct) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode(body))
        data = frame(msgspec.msgpack.encode(ChildReply(call_id, kind, raw)))
        try:
            with self._lock:
                self._connection.sendall(data)
        except OSError:
            end_orphan()
