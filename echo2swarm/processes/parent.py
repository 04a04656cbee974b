"""The parent's side: start a child, call it, notice its death, end it.

A child belongs to the ``async with`` that opened it. It leads a process group of
its own, so Ctrl-C in the terminal reaches only the parent, and so what the child
has started itself ends with it, even if it is killed.
"""

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog
import trio

from echo2swarm.processes.exits import wait_exited
from echo2swarm.processes.log_limit import limit_log
from echo2swarm.processes.oom import num_oom_kills
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
)
from echo2swarm.system.errors import ChildError
from protocols.errors import RemoteProtocolError
from protocols.framing import FrameDecoder, frame
from protocols.reasons import Reason

log = structlog.get_logger()
T = TypeVar("T")

_TERM_GRACE_S: Final = 3.0
_EXIT_STATUS_S: Final = 1.0
_LOG_TAIL_BYTES: Final = 2000
_NUM_LAST_LINES: Final = 3


class _Pending:
    def __init__(self, on_progress: Callable[[CallProgress], None] | None) -> None:
        self.done = trio.Event()
        self.answer: ChildReply | None = None
        self.on_progress = on_progress


class Child:
    """A running child process."""

    def __init__(
        self,
        name: str,
        process: "subprocess.Popen[bytes]",
        stream: trio.SocketStream,
        log_path: Path | None,
    ) -> None:
        self.name = name
        self._process = process
        self._stream = stream
        self._log_path = log_path
        self._next_id = 0
        self._pending: dict[int, _Pending] = {}
        self._unsent: dict[int, bytes] = {}
        """Frames, each a call or that nobody waits for it any more, by the call's number."""
        self._has_unsent = trio.Event()
        self._dead = trio.Event()
        self._is_group_gone = False
        self._is_killed_by_us = False
        self._num_oom_kills = num_oom_kills()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether calls may still be answered."""
        return not self._dead.is_set()

    async def wait_dead(self) -> None:
        """Return when the child has ended, for whatever cause."""
        await self._dead.wait()

    async def call(
        self,
        message: msgspec.Struct,
        kind: type[T],
        *,
        timeout_s: float = math.inf,
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> T:
        """Send ``message`` and return the child's answer.

        Whether calls are answered one after the other is up to the child. Of a cancelled call
        the child is told; whether it still computes it is up to the child, too.

        Raises:
            ChildError: the child answered with an error, died, or took over ``timeout_s``; or the
                message is larger than a frame can be.
        """
        if self._dead.is_set():
            raise ChildError(self._obituary())
        call_id, self._next_id = self._next_id, self._next_id + 1
        raw = msgspec.Raw(msgspec.msgpack.encode(message))
        self._send(call_id, Call(call_id, raw))
        pending = self._pending[call_id] = _Pending(on_progress)
        try:
            with trio.fail_after(timeout_s):
                await pending.done.wait()
        except trio.TooSlowError:
            raise ChildError(
                f"{self.name} did not answer {type(message).__name__} within {timeout_s:g} s"
            ) from None
        finally:
            self._pending.pop(call_id, None)
            # What the child has not been told of need not be called off.
            if not pending.done.is_set() and self._unsent.pop(call_id, None) is None:
                self._send(call_id, Cancel(call_id))
        answer = pending.answer
        if answer is None:
            raise ChildError(self._obituary())
        if answer.kind is FrameKind.ERROR:
            failure = msgspec.msgpack.decode(answer.body, type=Failure)
            raise ChildError(
                f"{self.name}: {failure.error}: {failure.message}", error=failure.error
            )
        return msgspec.msgpack.decode(answer.body, type=kind)

    def kill(self) -> None:
        """End the child, and what it has started, at once; pending calls fail."""
        if self._process.poll() is None:
            self._is_killed_by_us = True
            self._kill_group()

    def _kill_group(self) -> None:
        """Kill the child, and what it has started and that may have survived it.

        Only once after its death: the number may come to be another process's.
        """
        if self._is_group_gone:
            return
        self._is_group_gone = self._process.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, call_id: int, message: Call | Cancel) -> None:
        data = msgspec.msgpack.encode(message)
        if len(data) > MAX_FRAME_BYTES:
            raise ChildError(
                f"{self.name} can't be given {len(data)} bytes at once, limit {MAX_FRAME_BYTES}",
                error=Reason.TOO_LARGE.name,
            )
        self._unsent[call_id] = frame(data)
        self._has_unsent.set()

    async def _write(self) -> None:
        """Send what there is to send, until cancelled.

        Apart from the callers: none of them may cut a frame off, nor wait for a child that hangs
        and takes nothing for longer than it wants to.
        """
        while True:
            await self._has_unsent.wait()
            self._has_unsent = trio.Event()
            while self._unsent:
                data = self._unsent.pop(next(iter(self._unsent)))
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # the reader has seen the same, and is about to fail all pending calls

    async def _read(self) -> None:
        try:
            await self._take_answers()
            # The socket closes a moment before the exit status is there, which says more.
            with trio.move_on_after(_EXIT_STATUS_S):
                await wait_exited(self._process)
        finally:
            if self._process.poll() is not None:
                self._kill_group()
            self._dead.set()
            for pending in self._pending.values():
                pending.done.set()

    async def _take_answers(self) -> None:
        frames = FrameDecoder(max_bytes=MAX_FRAME_BYTES)
        decoder = msgspec.msgpack.Decoder(ChildReply)
        try:
            while data := await self._stream.receive_some(1 << 20):
                for payload in frames.feed(data):
                    self._take(decoder.decode(payload))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # as good as an end of stream: the child is gone
        except (RemoteProtocolError, msgspec.MsgspecError) as exc:
            log.error("child.garbled", child=self.name, error=str(exc))

    def _take(self, answer: ChildReply) -> None:
        pending = self._pending.get(answer.call_id)
        if pending is None:
            return  # the caller was cancelled
        if answer.kind is FrameKind.PROGRESS:
            if pending.on_progress is not None:
                pending.on_progress(msgspec.msgpack.decode(answer.body, type=CallProgress))
            return
        pending.answer = answer
        pending.done.set()

    def _obituary(self) -> str:
        status = self._process.poll()
        if status is None:
            how = "closed its socket"
        elif status < 0:
            how = f"was killed by {signal.Signals(-status).name}{self._why_killed(-status)}"
        else:
            how = f"exited with status {status}"
        where = f"; its log: {self._log_path}" if self._log_path else ""
        return f"{self.name} {how}{where}{self._last_words()}"

    def _why_killed(self, number: int) -> str:
        if number != signal.SIGKILL or self._is_killed_by_us:
            return ""
        if num_oom_kills() > self._num_oom_kills:
            return " by the system: out of memory"
        return " (not by us: perhaps for want of memory)"

    def _last_words(self) -> str:
        if self._log_path is None:
            return ""
        try:
            with self._log_path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        if not lines:
            return ""
        last = " | ".join(line.strip()[:300] for line in lines[-_NUM_LAST_LINES:] if line.strip())
        return f" (last lines: {last})"


@asynccontextmanager
async def open_child(
    module: str,
    *,
    name: str,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    python: str = sys.executable,
    shows_tracebacks: bool = False,
) -> AsyncIterator[Child]:
    """Run ``python -m module`` as a child for the length of the context.

    Args:
        module: its ``main`` must end in a ``serve`` of :mod:`echo2swarm.processes`.
        name: for messages, as in ``engine``.
        arguments: command-line arguments of the module.
        env: added to, and overriding, this process's environment.
        log_path: where its output is appended; else it goes to our standard error. When it is
            too long, it begins anew, and its end is beside it as ``NAME.1``.
        python: the interpreter; that of another environment has to have this package, too.
        shows_tracebacks: of errors that are to be expected, too, and of which the caller tells;
            in a log they always are.
    """
    variables = {
        **os.environ,
        **(env or {}),
        TRACEBACKS_VARIABLE: "1" if log_path or shows_tracebacks else "",
    }
    # Here, not in a thread: it takes milliseconds, and the child must not be tied to a worker
    # thread that trio may end.
    process, ours = _start([python, "-m", module, *arguments], variables, log_path)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    child = Child(name, process, stream, log_path)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child._read)
            nursery.start_soon(child._write)
            if log_path is not None:
                nursery.start_soon(limit_log, log_path)
            try:
                yield child
            finally:
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await stream.aclose()
            await _end(process)
            child._kill_group()


def _start(
    command: Sequence[str], variables: Mapping[str, str], log_path: Path | None
) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start a child; returns it, and our end of the socket to it."""
    ours, theirs = socket.socketpair()
    try:
        with open(log_path, "ab") if log_path else open(os.dup(2), "wb") as output:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**variables, SOCKET_FD_VARIABLE: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


async def _end(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the child, which ends by itself when its socket closes; insist if it does not."""
    insist: tuple[Callable[[], None] | None, ...] = (None, process.terminate, process.kill)
    for act in insist:
        if act is not None:
            act()
        with trio.move_on_after(_TERM_GRACE_S):
            await wait_exited(process)
            return
    process.wait()
