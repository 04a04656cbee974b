"""How long nodes take, measured by when their leases were granted and when they ended.

Nothing here is a node's claim. A lease takes a fixed time and a time for each completion
that the node has in hand when it gets it, its own included; both follow from its last
leases, and so does by how much the slow ones of them exceeded that.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from math import inf
from typing import Final

from protocols.ids import PeerId

QUANTILE: Final = 0.9
"""A prediction is kept by this share of leases, as far as the last of them tell."""
MAX_PACES: Final = 16_384
"""Nodes that are remembered; those not heard of for longest are forgotten."""
_KEEP: Final = 0.85
"""The weight of what was known, against one more lease."""
_MAX_LEASES: Final = 16
_FEW: Final = 5
_FEW_MARGIN: Final = 1.25
"""Of the first leases nobody knows how much they vary."""
_LEAST_MARGIN: Final = 1.05
_MAX_MARGIN: Final = 4.0
CHANGE_FACTOR: Final = 2.0
"""Two leases in a row beyond this times what few exceed: what was known of it holds no more."""
CUT_SHORT_FACTOR: Final = 2.0
"""Who has not finished after some time is expected to need as long again."""
_PRIOR_WEIGHT: Final = 0.5
"""Of the assumption that all of the time grows with the size, which few sizes can't tell."""


class NodePace:
    """What one node takes for its leases."""

    def __init__(self) -> None:
        self._weight = self._sizes = self._times = self._squares = self._products = 0.0
        self._fixed_s = self._each_s = 0.0
        self._last: deque[tuple[int, float]] = deque(maxlen=_MAX_LEASES)
        self._margin = _FEW_MARGIN
        self._was_slow = False
        self.is_guess = False
        """Whether it has finished no lease yet, and this is what it would have taken at least."""
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
        is_slow = bool(self._last) and took_s > CHANGE_FACTOR * self.slow_s(num_in_hand)
        if is_slow and self._was_slow:
            # Not chance: it is another node now, so to speak.
            last = self._last[-1]
            self._last.clear()
            self._weight = self._sizes = self._times = self._squares = self._products = 0.0
            self._count(*last)
        self._was_slow = is_slow
        self._count(num_in_hand, took_s)
        self._fit()
        ratios = sorted(took_s / self.usual_s(size) for size, took_s in self._last)
        worst = ratios[min(len(ratios) - 1, int(QUANTILE * len(ratios)))]
        least = _FEW_MARGIN if len(ratios) < _FEW else _LEAST_MARGIN
        self._margin = min(max(worst, least), _MAX_MARGIN)

    def _count(self, num_in_hand: int, took_s: float) -> None:
        self._last.append((num_in_hand, took_s))
        self._weight = self._weight * _KEEP + 1
        self._sizes = self._sizes * _KEEP + num_in_hand
        self._times = self._times * _KEEP + took_s
        self._squares = self._squares * _KEEP + num_in_hand**2
        self._products = self._products * _KEEP + num_in_hand * took_s

    def usual_s(self, num_in_hand: float) -> float:
        """Return what a lease is expected to take."""
        return max(1e-6, self._fixed_s + self._each_s * num_in_hand)

    def slow_s(self, num_in_hand: float) -> float:
        """Return what few leases are expected to exceed."""
        return self._margin * self.usual_s(num_in_hand)

    def num_within(self, seconds: float, *, is_usual_enough: bool = False) -> float:
        """Return how many completions in hand are done within ``seconds``, few exceptions.

        Where the usual is enough, there may be many.
        """
        left_s = seconds / (1.0 if is_usual_enough else self._margin) - self._fixed_s
        if left_s <= 0:
            return 0.0
        return left_s / self._each_s if self._each_s > 0 else inf

    def _fit(self) -> None:
        """Split the time into a fixed part and one for each completion: least squares."""
        mean_size, mean_s = self._sizes / self._weight, self._times / self._weight
        variance = self._squares - self._weight * mean_size**2
        covariance = self._products - self._weight * mean_size * mean_s
        prior = _PRIOR_WEIGHT * mean_size**2
        all_grows_s = mean_s / mean_size
        slope = (covariance + prior * all_grows_s) / (variance + prior)
        self._each_s = min(max(slope, 0.0), all_grows_s)
        self._fixed_s = mean_s - self._each_s * mean_size


class PaceBook:
    """The paces of all nodes that have finished a lease."""

    def __init__(self) -> None:
        self._paces: dict[PeerId, NodePace] = {}
        self._ranked: list[float] = []
        """Seconds per completion of each, in order."""

    def __len__(self) -> int:
        """Return how many nodes are known."""
        return len(self._paces)

    def get(self, peer: PeerId) -> NodePace | None:
        """Return what is known of a node."""
        return self._paces.get(peer)

    def add(
        self,
        peer: PeerId,
        num_in_hand: int,
        took_s: float,
        *,
        is_done: bool = True,
        is_trial: bool = False,
    ) -> None:
        """Take in a finished lease, or with ``is_done`` false one that would have taken longer.

        One of these tells nothing where it was expected to take that long. A finished one
        that was to show whether the node is still slow counts for all that was known.
        """
        known = self._paces.get(peer)
        if not is_done:
            if known is not None and took_s <= known.usual_s(num_in_hand):
                return
            took_s *= CUT_SHORT_FACTOR
        pace = self._paces.pop(peer, None)
        if pace is not None:
            self._unrank(pace.each_s)
        if pace is None or (is_done and (pace.is_guess or is_trial)):
            pace = NodePace()
            while len(self._paces) >= MAX_PACES:
                self._unrank(self._paces.pop(next(iter(self._paces))).each_s)
        pace.add(num_in_hand, took_s)
        pace.is_guess = not is_done and (known is None or known.is_guess)
        pace.granted_at_s = float("-inf") if known is None else known.granted_at_s
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
