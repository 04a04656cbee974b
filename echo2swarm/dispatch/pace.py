"""How long nodes take, measured by when their leases were granted and when they ended.

Nothing here is a node's claim. A lease takes a fixed time and a time for each completion
that the node has in hand when it gets it, its own included; both follow from its last
leases, and so does by how much the slow ones of them exceeded that.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Final

from protocols.ids import PeerId

QUANTILE: Final = 0.95
"""A prediction is kept by this share of leases, as far as the last of them tell."""
MAX_PACES: Final = 16_384
"""Nodes that are remembered; those not heard of for longest are forgotten."""
_KEEP: Final = 0.85
"""The weight of what was known, against one more lease."""
_MAX_RATIOS: Final = 20
_FEW: Final = 5
_FEW_MARGIN: Final = 1.25
"""Of the first leases nobody knows how much they vary."""
_MAX_MARGIN: Final = 4.0
_LEAST_SPREAD: Final = 0.1
"""Sizes that differ by less than this share say nothing about the time for each completion."""


class Pace:
    """What one node takes for its leases."""

    def __init__(self) -> None:
        self._weight = self._sizes = self._times = self._squares = self._products = 0.0
        self._fixed_s = self._each_s = 0.0
        self._ratios: deque[float] = deque(maxlen=_MAX_RATIOS)
        self._margin = _FEW_MARGIN
        self.num_leases = 0
        self.granted_at_s = float("-inf")
        """When it got its last lease."""

    @property
    def each_s(self) -> float:
        """Seconds per completion, all in all."""
        return self._times / self._sizes

    def add(self, num_in_hand: int, took_s: float) -> None:
        """Take in a finished lease.

        Args:
            num_in_hand: completions in hand when it was granted, its own included.
            took_s: from grant to the last verdict.
        """
        took_s = max(took_s, 1e-6)
        if self.num_leases:
            self._ratios.append(took_s / self.usual_s(num_in_hand))
        self.num_leases += 1
        self._weight = self._weight * _KEEP + 1
        self._sizes = self._sizes * _KEEP + num_in_hand
        self._times = self._times * _KEEP + took_s
        self._squares = self._squares * _KEEP + num_in_hand**2
        self._products = self._products * _KEEP + num_in_hand * took_s
        self._fit()
        ranked = sorted(self._ratios)
        worst = ranked[min(len(ranked) - 1, int(QUANTILE * len(ranked)))] if ranked else 1.0
        least = _FEW_MARGIN if len(ranked) < _FEW else 1.0
        self._margin = min(max(worst, least), _MAX_MARGIN)

    def usual_s(self, num_in_hand: float) -> float:
        """Return what a lease is expected to take."""
        return max(1e-6, self._fixed_s + self._each_s * num_in_hand)

    def slow_s(self, num_in_hand: float) -> float:
        """Return what few leases are expected to exceed."""
        return self._margin * self.usual_s(num_in_hand)

    def num_within(self, seconds: float) -> float:
        """Return how many completions in hand are done within ``seconds``, few exceptions."""
        left_s = seconds / self._margin - self._fixed_s
        if left_s <= 0:
            return 0.0
        return left_s / self._each_s if self._each_s > 0 else float("inf")

    def _fit(self) -> None:
        mean_size, mean_s = self._sizes / self._weight, self._times / self._weight
        variance = self._squares / self._weight - mean_size**2
        # Where all were of one size, all of the time is taken to grow with it: a guess
        # that the first smaller lease puts right.
        each_s = mean_s / mean_size
        if variance > (_LEAST_SPREAD * mean_size) ** 2:
            slope = (self._products / self._weight - mean_size * mean_s) / variance
            each_s = min(max(slope, 0.0), each_s)
        self._each_s = each_s
        self._fixed_s = mean_s - each_s * mean_size


class PaceBook:
    """The paces of all nodes that have finished a lease."""

    def __init__(self) -> None:
        self._paces: dict[PeerId, Pace] = {}
        self._ranked: list[float] = []
        """Seconds per completion of each, in order."""

    def __len__(self) -> int:
        """Return how many nodes are known."""
        return len(self._paces)

    def get(self, peer: PeerId) -> Pace | None:
        """Return what is known of a node."""
        return self._paces.get(peer)

    def add(self, peer: PeerId, num_in_hand: int, took_s: float) -> None:
        """Take in a finished lease."""
        pace = self._paces.pop(peer, None)
        if pace is None:
            pace = Pace()
            while len(self._paces) >= MAX_PACES:
                self._unrank(self._paces.pop(next(iter(self._paces))).each_s)
        else:
            self._unrank(pace.each_s)
        pace.add(num_in_hand, took_s)
        self._paces[peer] = pace
        insort(self._ranked, pace.each_s)

    def speed_rank(self, peer: PeerId) -> float:
        """Return 0 for the slowest node, 1 for the fastest; 0.5 where it is not known."""
        pace = self._paces.get(peer)
        if pace is None or len(self._ranked) < 2:
            return 0.5
        low, high = (cut(self._ranked, pace.each_s) for cut in (bisect_left, bisect_right))
        return 1 - (low + high - 1) / 2 / (len(self._ranked) - 1)

    def median_each_s(self) -> float | None:
        """Return the seconds per completion of the middle one of all nodes."""
        return self._ranked[len(self._ranked) // 2] if self._ranked else None

    def _unrank(self, each_s: float) -> None:
        del self._ranked[bisect_left(self._ranked, each_s)]
