"""Whether work is handed out while the verifier fails on everything, without I/O.

A verifier that raises on each completion (a module that is missing, a judge that is not
reachable, a data set that was changed) would have nodes sample for nothing. So leases pause when
a row of completions from everybody failed, a few are tried after a while, then after twice as
long, ...; the first reward ends it. Who makes the verifier fail on its own completions stops
nobody else: the row must have been failed by all that lately had rewards.
"""

from dataclasses import dataclass, field
from typing import Final

NUM_FAILED: Final = 32
"""Completions in a row, of whomever, after which leases pause."""
FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0
NUM_TRIED: Final = 2
"""Leases that are granted after each pause."""
_REMEMBERED_S: Final = 120.0
"""For so long a node that had rewards must have failed, too."""
_MAX_REMEMBERED: Final = 4096


@dataclass(slots=True)
class VerifierGate:
    """Open as long as the verifier works."""

    num_failed: int = 0
    """Completions in a row."""
    error: str = ""
    """Of the last one."""
    _failed_by: set[str] = field(default_factory=set)
    _rewarded_at_s: dict[str, float] = field(default_factory=dict)
    _pause_s: float = 0.0
    """0 while it is open."""
    _until_s: float = 0.0
    _num_left: int = 0
    """Leases that may still be granted to try it."""
    _has_tried: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether leases pause."""
        return self._pause_s > 0

    def scored(self, peer: str, now_s: float) -> bool:
        """Note that a completion of a node got a reward; returns whether that ends a pause."""
        was_closed = self.is_closed
        self._rewarded_at_s.pop(peer, None)
        self._rewarded_at_s[peer] = now_s
        if len(self._rewarded_at_s) > _MAX_REMEMBERED:
            del self._rewarded_at_s[next(iter(self._rewarded_at_s))]
        self.num_failed, self.error, self._pause_s, self._num_left = 0, "", 0.0, 0
        self._failed_by.clear()
        self._has_tried = False
        return was_closed

    def failed(self, peer: str, error: str, now_s: float) -> bool:
        """Note that a completion of a node got none; returns whether a pause begins now."""
        self.num_failed += 1
        self.error = error
        if len(self._failed_by) < _MAX_REMEMBERED:
            self._failed_by.add(peer)
        if self.is_closed:
            if not self._has_tried:
                return False  # it was sampled before the pause
            self._has_tried = False
            return self._pause(min(2 * self._pause_s, LONGEST_PAUSE_S), now_s)
        if self.num_failed < NUM_FAILED or self._is_rewarding_others(now_s):
            return False
        return self._pause(FIRST_PAUSE_S, now_s)

    def why_not(self, now_s: float) -> str:
        """Return why no lease is granted now; empty if one may be."""
        if not self.is_closed:
            return ""
        if now_s >= self._until_s and not self._num_left:
            self._num_left = NUM_TRIED
        return "" if self._num_left else self.report(now_s)

    def granted(self, now_s: float) -> None:
        """Note that a lease was granted."""
        if not self.is_closed:
            return
        self._has_tried = True
        self._num_left = max(0, self._num_left - 1)
        if not self._num_left:
            self._until_s = now_s + self._pause_s

    def report(self, now_s: float) -> str:
        """Return what to tell of it; empty while it is open."""
        if not self.is_closed:
            return ""
        left_s = self._until_s - now_s
        when = f"in {left_s:.0f} s" if left_s >= 1 else "now"
        return (
            f"the verifier failed on the last {self.num_failed} completions, so leases pause; a "
            f"few are tried {when}; its last error: {self.error}; see logs/scorer.log"
        )

    def _pause(self, pause_s: float, now_s: float) -> bool:
        self._pause_s, self._num_left = pause_s, 0
        self._until_s = now_s + pause_s
        return True

    def _is_rewarding_others(self, now_s: float) -> bool:
        return any(
            now_s - at_s <= _REMEMBERED_S and peer not in self._failed_by
            for peer, at_s in self._rewarded_at_s.items()
        )
