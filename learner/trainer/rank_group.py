"""The other processes of a trainer, as rank 0 sees them: started, told the same calls, watched.

Rank 0 is the learner's child, and the other ranks are children of rank 0, on a socket pair each.
They end when it ends, however that comes about. If one of them dies, or fails where the others
do not, no collective will ever complete again: all end, and the learner goes back to its last
checkpoint.
"""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

import msgspec

from echo2swarm.processes.wire import (
    MAX_FRAME_BYTES,
    SOCKET_FD_VARIABLE,
    Call,
    ChildReply,
    Failure,
    FrameKind,
)
from echo2swarm.system.errors import DiskFullError, StoreError
from protocols.framing import FrameDecoder, frame

T = TypeVar("T")

MODULE: Final = "learner.trainer.rank_worker"
DISAGREEMENT_S: Final = 20.0
"""After one process has failed, the others are given so long to fail likewise."""
_END_S: Final = 5.0
_OBITUARY_S: Final = 2.0


class RankGroup:
    """Ranks 1 to n - 1.

    Args:
        size: n.
        on_loss: called from a thread if a process is lost; must end this one.
    """

    def __init__(self, size: int, *, on_loss: Callable[[str], NoReturn] | None = None) -> None:
        self._on_loss = on_loss or give_up
        self._others = [_Other(rank, self._lost) for rank in range(1, size)]
        self._next_id = 0
        self._lock = threading.Lock()
        self._is_closing = False

    @property
    def pids(self) -> list[int]:
        """Of the other processes, in the order of their ranks."""
        return [other.pid for other in self._others]

    def tell(self, *calls: msgspec.Struct) -> "PendingCall":
        """Send a call to all: one for each, or the same for all. Returns at once."""
        with self._lock:
            call_id, self._next_id = self._next_id, self._next_id + 1
        told = PendingCall(len(self._others), self._on_loss)
        for number, other in enumerate(self._others):
            other.send(call_id, calls[number % len(calls)], told)
        return told

    def do(self, own: Callable[[], T], *calls: msgspec.Struct) -> T:
        """Have all ranks do the same: this one by ``own``, the others as :meth:`tell` says.

        If all fail, what ``own`` raised is raised: nothing has changed anywhere. If only some
        do, all end.
        """
        told = self.tell(*calls)
        try:
            result = own()
        except Exception as exc:
            if told.num_failed(within_s=DISAGREEMENT_S) < len(self._others):
                self._on_loss(f"process 0 of the trainer failed: {type(exc).__name__}: {exc}")
            raise
        error = told.wait()
        if error is not None:
            self._on_loss(str(error))
        return result

    def close(self) -> None:
        """End the other processes."""
        self._is_closing = True
        for other in self._others:
            other.close()

    def _lost(self, why: str) -> None:
        if not self._is_closing:
            self._on_loss(why)


class PendingCall:
    """A call that the other ranks work on."""

    def __init__(self, num_others: int, on_loss: Callable[[str], NoReturn]) -> None:
        self._num_others = num_others
        self._on_loss = on_loss
        self._changed = threading.Condition()
        self._failures: dict[int, Failure] = {}
        self._num_done = 0
        self._is_settled = False

    def answered(self, rank: int, failure: Failure | None) -> None:
        """Note an answer; from whatever thread."""
        with self._changed:
            if failure is None:
                self._num_done += 1
            else:
                if not self._failures:
                    timer = threading.Timer(DISAGREEMENT_S, self._insist)
                    timer.daemon = True
                    timer.start()
                self._failures[rank] = failure
            self._changed.notify_all()

    def num_failed(self, *, within_s: float) -> int:
        """Return how many others have failed, once all have answered or the time is over."""
        with self._changed:
            self._changed.wait_for(self._is_complete, timeout=within_s)
            self._is_settled = True
            return len(self._failures)

    def wait(self) -> StoreError | None:
        """Return when all others have answered; with the error, if one has failed."""
        with self._changed:
            self._changed.wait_for(self._is_complete)
            self._is_settled = True
        if not self._failures:
            return None
        kinds = {failure.error for failure in self._failures.values()}
        kind = DiskFullError if DiskFullError.__name__ in kinds else StoreError
        return kind(self._text())

    def _is_complete(self) -> bool:
        return self._num_done + len(self._failures) == self._num_others

    def _insist(self) -> None:
        """Some time after the first failure: end all, unless rank 0 knows of it."""
        with self._changed:
            is_open = not self._is_settled
        if is_open:
            self._on_loss(self._text())

    def _text(self) -> str:
        rank, failure = next(iter(self._failures.items()))
        return f"process {rank} of the trainer failed: {failure.error}: {failure.message}"


class _Other:
    """One other process."""

    def __init__(self, rank: int, on_loss: Callable[[str], None]) -> None:
        self._rank = rank
        self._on_loss = on_loss
        self._told: dict[int, PendingCall] = {}
        self._outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", MODULE],
                stdin=subprocess.DEVNULL,
                env={**os.environ, SOCKET_FD_VARIABLE: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
            )
        for run in (self._read, self._write):
            threading.Thread(target=run, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, call_id: int, call: msgspec.Struct, told: PendingCall) -> None:
        self._told[call_id] = told
        raw = msgspec.Raw(msgspec.msgpack.encode(call))
        # By a thread: a batch may be more than a socket takes at once.
        self._outbox.put(frame(msgspec.msgpack.encode(Call(call_id, raw))))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()

    def _write(self) -> None:
        while True:
            try:
                self._socket.sendall(self._outbox.get())
            except OSError:
                return  # the reader sees it, too

    def _read(self) -> None:
        frames = FrameDecoder(max_bytes=MAX_FRAME_BYTES)
        decoder = msgspec.msgpack.Decoder(ChildReply)
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._on_loss(self._obituary())
                return
            for payload in frames.feed(data):
                self._take(decoder.decode(payload))

    def _take(self, answer: ChildReply) -> None:
        if answer.kind is FrameKind.PROGRESS:
            return
        failure = None
        if answer.kind is FrameKind.ERROR:
            failure = msgspec.msgpack.decode(answer.body, type=Failure)
        self._told.pop(answer.call_id).answered(self._rank, failure)

    def _obituary(self) -> str:
        # The socket closes a moment before the exit status is there, which says more.
        deadline_s = time.monotonic() + _OBITUARY_S
        while (status := self._process.poll()) is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if status is None:
            how = "closed its socket"
        elif status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        else:
            how = f"exited with status {status}"
        return f"process {self._rank} of the trainer {how}"


def give_up(why: str) -> NoReturn:
    """End this process, which ends the others; its last words are what the learner shows."""
    print(why, file=sys.stderr, flush=True)  # noqa: T201 - the child's log
    os._exit(1)
