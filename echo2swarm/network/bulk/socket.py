"""One TLS connection whose bytes move in worker threads when there are many.

The socket never blocks. trio waits until it is ready, and then a thread encrypts or
decrypts what there is to do; a few kilobytes are done on the event loop, because
a thread costs more than they do. No thread ever waits for the network, so
cancelling takes no longer than the work at hand.
"""

import fcntl
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Final

import trio

THREAD_BYTES: Final = 64 * 1024
"""From this much on, a thread does it."""
SLICE_BYTES: Final = 32 * 1024
"""What one call to OpenSSL encrypts; it decrypts one record of up to 16 KiB."""
MAX_STEPS: Final = 128
"""What a thread does at once: others get their turn, and who is cancelled gets away."""
MAX_INLINE_STEPS: Final = 4
"""The same on the event loop. A peer may send records of a single byte each."""
RECORD_BYTES: Final = 17 * 1024
"""OpenSSL holds less than this of a record that is not here whole."""
LOW_WATER_BYTES: Final = 256 * 1024
"""In a large frame, waking up is worth it for this much..."""
LOW_WATER_SHARE: Final = 1 / 4
"""... or for this share of the receive buffer, lest the sender have to wait for us to wake up."""
FIRST_ROOM_BYTES: Final = 256 * 1024
"""Memory for a frame of which nothing is here yet; a small frame has no more than it needs."""
GROWTH: Final = 4
"""How many times what is here there is room for, once the first room is full."""
LINGER_S: Final = 2.0
FIRST_LOOK_S: Final = 0.001
KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 3
VANISHED_S: Final = 30
"""What was sent and is not acknowledged within this means that nobody is there."""

_INT: Final = struct.Struct("i")
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_TCP_CLOSE: Final = 7
"""The state of a TCP connection that is over, as the kernel counts them."""


class BrokenError(Exception):
    """The connection ended or broke; says in a few words how."""


class Filling:
    """A buffer on its way to being full. What a cancelled reader has got stays in it.

    It grows with what arrives: to announce much costs a peer nothing, and must cost us nothing.
    """

    __slots__ = ("_buffer", "num_bytes", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.num_bytes = 0
        self._buffer = bytearray(min(size_bytes, FIRST_ROOM_BYTES))

    @property
    def missing_bytes(self) -> int:
        """How much is missing."""
        return self.size_bytes - self.num_bytes

    @property
    def held_bytes(self) -> int:
        """How much memory it takes up."""
        return len(self._buffer)

    @property
    def view(self) -> memoryview:
        """What there is, where it lies; all of it once nothing is missing."""
        return memoryview(self._buffer)[: self.num_bytes]

    def room(self) -> memoryview:
        """Return where the next bytes go; empty only if nothing is missing."""
        if self.num_bytes == len(self._buffer) < self.size_bytes:
            grown = bytearray(min(self.size_bytes, GROWTH * len(self._buffer)))
            grown[: self.num_bytes] = self._buffer
            self._buffer = grown
        return memoryview(self._buffer)[self.num_bytes :]


class _Next(Enum):
    """What to do after a call to OpenSSL."""

    NOTHING = auto()
    GO_ON = auto()
    WAIT = auto()


_Step = Callable[[], _Next]


class TlsSocket:
    """A TLS connection, not yet shaken hands on. One task reads and one writes at a time."""

    def __init__(
        self,
        stream: trio.SocketStream,
        context: ssl.SSLContext,
        *,
        is_accepting: bool,
        threads: trio.CapacityLimiter,
    ) -> None:
        """Take over ``stream``, which is of no more use to others.

        Raises:
            BrokenError: it has ended already.
        """
        raw = socket.socket(fileno=stream.socket.detach())
        try:
            self.address: str = raw.getpeername()[0]
            """The IP address of the other end."""
            _tune(raw)
            self.ssl = context.wrap_socket(
                raw, server_side=is_accepting, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as exc:
            raw.close()
            raise BrokenError(_explain(exc)) from exc
        self._threads = threads
        # OpenSSL does not let two threads work on one connection.
        self._guard = threading.Lock()
        self._is_closed = False
        self._low_water_bytes = 1
        self._is_flowing = False
        """Whether the last write found enough to do for a thread."""

    async def shake_hands(self) -> None:
        """Do the handshake; whoever calls sets a deadline.

        Raises:
            BrokenError: it failed.
        """
        while True:
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                await self._wait(trio.lowlevel.wait_readable)
            except ssl.SSLWantWriteError:
                await self._wait(trio.lowlevel.wait_writable)
            except (OSError, ValueError) as exc:
                raise BrokenError(_explain(exc)) from exc
            else:
                return

    # Reading.

    async def fill(self, target: Filling) -> None:
        """Read until ``target`` is full.

        Raises:
            BrokenError: the connection ended before.
        """

        def step() -> _Next:
            try:
                num_bytes = self.ssl.recv_into(target.room())
            except ssl.SSLWantReadError:
                return _Next.WAIT
            if not num_bytes:
                raise BrokenError("ended")
            target.num_bytes += num_bytes
            return _Next.GO_ON if target.missing_bytes else _Next.NOTHING

        while target.missing_bytes:
            num_bytes = min(target.missing_bytes, self._num_here_bytes())
            if await self._work(step, num_bytes) is _Next.WAIT:
                self._set_low_water(target.missing_bytes)
                await self._wait(trio.lowlevel.wait_readable)

    def _num_here_bytes(self) -> int:
        return 0 if self._is_closed else _ask_kernel(self.ssl, termios.FIONREAD)

    def _set_low_water(self, missing_bytes: int) -> None:
        """Sleep until so much is here that waking up is worth it.

        No more than what must come: OpenSSL may hold a part of a record already. The
        end of a connection wakes in any case, and so does a full receive buffer.
        """
        if self._is_closed:
            return
        room_bytes = self.ssl.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        wanted_bytes = min(
            missing_bytes - RECORD_BYTES, LOW_WATER_BYTES, int(room_bytes * LOW_WATER_SHARE)
        )
        wanted_bytes = max(1, wanted_bytes)
        if wanted_bytes != self._low_water_bytes:
            self.ssl.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted_bytes)
            self._low_water_bytes = wanted_bytes

    # Writing.

    async def send(self, data: bytes | memoryview) -> None:
        """Write all of ``data``; if that is cancelled, the connection is of no more use.

        Raises:
            BrokenError: the connection broke.
        """
        view, num_sent = memoryview(data), 0

        def step() -> _Next:
            nonlocal num_sent
            try:
                # OpenSSL wants to see a slice again that it could not write whole.
                num_sent += self.ssl.send(view[num_sent : num_sent + SLICE_BYTES])
            except ssl.SSLWantWriteError:
                return _Next.WAIT
            return _Next.GO_ON if num_sent < len(view) else _Next.NOTHING

        while num_sent < len(view):
            before = num_sent
            then = await self._work(step, len(view) - num_sent if self._is_flowing else 0)
            self._is_flowing = num_sent - before >= THREAD_BYTES
            if then is _Next.WAIT:
                await self._wait(trio.lowlevel.wait_writable)

    # Both.

    async def _work(self, step: _Step, num_bytes: int) -> _Next:
        """Take steps where it suits ``num_bytes``, the amount that there seems to be."""
        try:
            # Without waiting: a thread that works in the other direction may hold the guard.
            if num_bytes < THREAD_BYTES and self._guard.acquire(blocking=False):
                try:
                    return self._take(step, MAX_INLINE_STEPS)
                finally:
                    self._guard.release()
            return await trio.to_thread.run_sync(self._in_thread, step, limiter=self._threads)
        except (OSError, ValueError) as exc:
            raise BrokenError(_explain(exc)) from exc

    def _take(self, step: _Step, max_steps: int) -> _Next:
        then = _Next.GO_ON
        for _ in range(max_steps):
            if self._is_closed:
                raise BrokenError("closed")
            then = step()
            if then is not _Next.GO_ON:
                break
        return then

    def _in_thread(self, step: _Step) -> _Next:
        then = _Next.GO_ON
        for _ in range(MAX_STEPS):
            with self._guard:
                then = self._take(step, 1)
            if then is not _Next.GO_ON:
                break
        return then

    async def _wait(self, until: Callable[[socket.socket], Awaitable[None]]) -> None:
        if self._is_closed:
            raise BrokenError("closed")
        try:
            await until(self.ssl)
        except (trio.ClosedResourceError, trio.BusyResourceError) as exc:
            raise BrokenError("closed") from exc

    # The end.

    async def end(self) -> None:
        """Close, once the peer has got what was sent. Never raises, takes 2 s at most."""
        if self._stop():
            with suppress(OSError):
                self.ssl.shutdown(socket.SHUT_WR)
            look_s = FIRST_LOOK_S
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LINGER_S):
                # Closing a socket with unread bytes in it destroys what is on its way.
                while _has_unacknowledged(self.ssl):
                    await trio.sleep(look_s)
                    look_s *= 2
            self.ssl.close()

    def cut(self) -> None:
        """Close at once; what is on its way may be lost."""
        if self._stop():
            with suppress(OSError):
                self.ssl.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.ssl.close()

    def _stop(self) -> bool:
        """See to it that nobody works on the socket any more; returns False if that was so."""
        # A thread that holds it is done with its call in some microseconds.
        with self._guard:
            if self._is_closed:
                return False
            self._is_closed = True
        trio.lowlevel.notify_closing(self.ssl)
        return True


def _tune(raw: socket.socket) -> None:
    raw.setblocking(False)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * VANISHED_S)


def _has_unacknowledged(connection: socket.socket) -> bool:
    try:
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state != _TCP_CLOSE and _ask_kernel(connection, termios.TIOCOUTQ) > 0
    except OSError:
        return False


def _ask_kernel(connection: socket.socket, what: int) -> int:
    return int(_INT.unpack(fcntl.ioctl(connection, what, bytes(_INT.size)))[0])


def _explain(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        return (exc.reason or str(exc)).replace("_", " ").lower()
    if isinstance(exc, OSError):
        return exc.strerror or str(exc)
    return str(exc)
