"""One cap for all that a process uploads of weights, one for what it downloads.

Control messages are never counted.

A cap is a promise to whoever pays for the line, so it is kept over any stretch of time: at
most ``rate * seconds + burst`` bytes. Senders take their turn in the order in which they
asked. One message larger than a second's worth goes out whole, and is paid for after.
"""

from math import inf
from typing import Final

import trio

from echo2swarm.system.change_event import ChangeEvent
from protocols.errors import LocalProtocolError

BURST_S: Final = 0.25
"""An idle line saves up this many seconds' worth."""
MIN_BURST_BYTES: Final = 64 * 1024


class TokenBucket:
    """The arithmetic of a cap, without a clock.

    Bytes are numbered in the order in which they are asked for. What may be sent grows with
    time; a sender may go when the last byte *before* its own may be.
    """

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self._bytes_per_s = _checked(bytes_per_s)
        self._asked_bytes = 0.0
        self._allowed_bytes = 0.0
        self._at_s = -inf

    @property
    def bytes_per_s(self) -> float | None:
        """The cap; None is none."""
        return self._bytes_per_s

    def set_rate(self, bytes_per_s: float | None, now_s: float) -> None:
        """Change the cap: for those that wait already, too."""
        self._elapse(now_s)
        self._bytes_per_s = _checked(bytes_per_s)

    def take(self, num_bytes: int, now_s: float) -> float:
        """Ask for ``num_bytes``; returns the turn, for :meth:`wait_s`."""
        if num_bytes < 0:
            raise LocalProtocolError(f"{num_bytes} bytes to be sent")
        self._elapse(now_s)
        turn = self._asked_bytes
        self._asked_bytes += num_bytes
        return turn

    def wait_s(self, turn: float, now_s: float) -> float:
        """Return how long the sender with this turn has to wait at the present rate."""
        self._elapse(now_s)
        if self._bytes_per_s is None:
            return 0.0
        lacking_bytes = turn - self._allowed_bytes
        # Rounding leaves parts of a byte, whose time may be too short to pass.
        return lacking_bytes / self._bytes_per_s if lacking_bytes >= 1 else 0.0

    def next_wait_s(self, now_s: float) -> float:
        """Return how long one who asked now would have to wait."""
        self._elapse(now_s)
        return self.wait_s(self._asked_bytes, now_s)

    def give_back(self, num_bytes: int) -> None:
        """Note that bytes which were asked for will not be sent."""
        self._allowed_bytes += num_bytes

    def _elapse(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s) if self._at_s > -inf else 0.0
        self._at_s = max(self._at_s, now_s)
        if self._bytes_per_s is None:
            self._allowed_bytes = self._asked_bytes
            return
        burst = max(self._bytes_per_s * BURST_S, MIN_BURST_BYTES)
        self._allowed_bytes = min(
            self._allowed_bytes + passed_s * self._bytes_per_s, self._asked_bytes + burst
        )


class UploadBudget:
    """What a process may upload; one object, shared by all its streams.

    Args:
        max_bytes_per_s: what the owner of the line allows at most; None leaves it open.
    """

    def __init__(self, max_bytes_per_s: float | None = None) -> None:
        self._max_bytes_per_s = _checked(max_bytes_per_s)
        self._bucket = TokenBucket(max_bytes_per_s)
        self._waited_s = 0.0
        self._changes = ChangeEvent()
        """Rung when those who wait may go earlier, or must wait longer."""

    @property
    def bytes_per_s(self) -> float | None:
        """The cap now; None is none."""
        return self._bucket.bytes_per_s

    @property
    def max_bytes_per_s(self) -> float | None:
        """What the owner allows; None if that was left open."""
        return self._max_bytes_per_s

    @property
    def waited_s(self) -> float:
        """For how long senders had to wait because of the cap, all of them together."""
        return self._waited_s

    def allow(self, max_bytes_per_s: float | None) -> None:
        """Set what the owner allows from now on; None leaves it open again."""
        self._max_bytes_per_s = _checked(max_bytes_per_s)
        self._bucket.set_rate(max_bytes_per_s, trio.current_time())
        self._changes.notify()

    def suggest(self, bytes_per_s: float | None) -> None:
        """Set the cap, unless the owner has: theirs is never changed."""
        if self._max_bytes_per_s is None:
            self._bucket.set_rate(bytes_per_s, trio.current_time())
            self._changes.notify()

    async def wait_for_owner(self, num_bytes: int) -> None:
        """Return when the owner's cap lets ``num_bytes`` be sent; a suggested one holds not."""
        if self._max_bytes_per_s is not None:
            await self.wait(num_bytes)

    async def wait(self, num_bytes: int) -> None:
        """Return when ``num_bytes`` may be sent."""
        began_s = trio.current_time()
        turn = self._bucket.take(num_bytes, began_s)
        try:
            while (wait_s := self._bucket.wait_s(turn, trio.current_time())) > 0:
                with trio.move_on_after(wait_s):
                    await self._changes.next_change.wait()
        except trio.Cancelled:
            self._bucket.give_back(num_bytes)
            self._changes.notify()
            raise
        self._waited_s += trio.current_time() - began_s


class DownloadBudget:
    """What a process may download of weights; one object, shared by all its downloads.

    Bytes that were asked for come: so what is paced is the asking.

    Args:
        max_bytes_per_s: what the owner of the line allows at most; None leaves it open.
    """

    def __init__(self, max_bytes_per_s: float | None = None) -> None:
        self._bucket = TokenBucket(max_bytes_per_s)

    @property
    def bytes_per_s(self) -> float | None:
        """The cap now; None is none."""
        return self._bucket.bytes_per_s

    def allow(self, max_bytes_per_s: float | None, now_s: float) -> None:
        """Set what the owner allows from now on; None leaves it open."""
        self._bucket.set_rate(max_bytes_per_s, now_s)

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before anything more is asked for."""
        return self._bucket.next_wait_s(now_s)

    def asked(self, num_bytes: int, now_s: float) -> None:
        """Note that bytes were asked for."""
        self._bucket.take(num_bytes, now_s)


def bytes_per_s_of(mbit_per_s: float | None) -> float | None:
    """Return a cap as people state it, in bytes per second."""
    return None if mbit_per_s is None else mbit_per_s * 125_000


def _checked(bytes_per_s: float | None) -> float | None:
    if bytes_per_s is not None and not 0 < bytes_per_s < inf:
        raise ValueError(f"a cap of {bytes_per_s} bytes/s")
    return bytes_per_s
