"""How many dials to addresses that peers named: per address, per who named it, in all; no I/O.

A dial is paid for when it is begun, and paid back if the one we wanted was there. So honest
peers cost nothing however many they are, and who sends us where nobody is uses up its share.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple, TypeVar

from protocols.ids import PeerId


class Rate(NamedTuple):
    """What one of something may cost."""

    burst: int
    per_s: float


PER_HOST: Final = Rate(12, 0.1)
"""Of one IP address, whichever the port: six a minute after the first dozen."""
PER_SOURCE: Final = Rate(12, 0.1)
"""Of those that one peer named."""
IN_ALL: Final = Rate(64, 1.0)
MAX_KEPT: Final = 4096
FIRST_WAIT_S: Final = 5.0
MAX_WAIT_S: Final = 120.0
FORGET_S: Final = 3600.0
"""After this long a failure counts no more."""

T = TypeVar("T")


class _Bucket:
    """Tokens over time; full at the start."""

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._at_s = now_s

    def has_one(self, now_s: float) -> bool:
        gained = max(0.0, now_s - self._at_s) * self._rate.per_s
        self._tokens = min(float(self._rate.burst), self._tokens + gained)
        self._at_s = max(self._at_s, now_s)
        return self._tokens >= 1

    def take(self) -> None:
        self._tokens -= 1

    def give_back(self) -> None:
        self._tokens = min(float(self._rate.burst), self._tokens + 1)


class _Failures(NamedTuple):
    num: int
    retry_at_s: float


class DialBudget:
    """What dials to unproven addresses may cost, and when failed ones may be tried again."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._in_all = _Bucket(IN_ALL, -math.inf)
        self._failures: OrderedDict[Hashable, _Failures] = OrderedDict()
        self._open: OrderedDict[Hashable, tuple[_Bucket, ...]] = OrderedDict()

    def begin(
        self, peer: PeerId | None, target: tuple[str, int], *, told_by: str, now_s: float
    ) -> str:
        """Pay for a dial; returns why it can't be paid for, empty if it was."""
        for key in (target, (peer, target)):
            failures = self._failures.get(key)
            if failures is not None and failures.retry_at_s > now_s:
                return f"it failed, and is not tried again for {failures.retry_at_s - now_s:.0f} s"
        host = self._bucket(("host", target[0]), PER_HOST, now_s)
        source = self._bucket(("source", told_by), PER_SOURCE, now_s)
        if not host.has_one(now_s):
            return f"too many dials to {target[0]} lately"
        if not source.has_one(now_s):
            return "too many dials lately to what the same peer named"
        if not self._in_all.has_one(now_s):
            return "too many dials lately"
        paid = (host, source, self._in_all)
        for bucket in paid:
            bucket.take()
        _keep(self._open, (peer, target), paid)
        for key in (target, (peer, target)):
            self._fail(key, now_s)
        return ""

    def reached(self, peer: PeerId, target: tuple[str, int]) -> None:
        """Pay back the dial that found ``peer`` at ``target``, and forget failures there."""
        for bucket in self._open.pop((peer, target), ()):
            bucket.give_back()
        self._failures.pop(target, None)
        self._failures.pop((peer, target), None)

    def is_taken(self, target: tuple[str, int]) -> None:
        """Somebody else is at ``target``: others may still look for that one there."""
        self._failures.pop(target, None)

    def _bucket(self, key: Hashable, rate: Rate, now_s: float) -> _Bucket:
        bucket = self._buckets.pop(key, None) or _Bucket(rate, now_s)
        _keep(self._buckets, key, bucket)
        return bucket

    def _fail(self, key: Hashable, now_s: float) -> None:
        before = self._failures.pop(key, _Failures(0, now_s))
        num = 0 if now_s - before.retry_at_s > FORGET_S else before.num
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(num, 16), MAX_WAIT_S)
        _keep(self._failures, key, _Failures(num + 1, now_s + wait_s))


def _keep(table: OrderedDict[Hashable, T], key: Hashable, value: T) -> None:
    """Put an entry in, and the oldest out if there are too many."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_KEPT:
        table.popitem(last=False)
