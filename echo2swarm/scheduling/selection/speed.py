"""How fast a node is, from what was accepted of it; a trial of its own counts until then.

Without I/O and without a clock: the caller passes the time.
"""

from collections import deque
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Final

HALF_LIFE_S: Final = 120.0
"""Of work: what was done longer ago counts less and less."""
ENOUGH: Final = 3
"""From so many results on, what was measured is all that counts."""
PLENTY: Final = 16
"""After so many results, one that is still unsteady is just so."""
STEADY: Final = 0.15
"""Of a deviation, relative."""
PRIOR_STD: Final = 0.5
"""Of what a node says of itself, relative."""
SILENT_S: Final = 120.0
"""A node that worked for so long and delivered nothing is taken to deliver nothing."""
FORGET_S: Final = 900.0
"""After so long without work, one that delivered nothing may be tried again."""
_KEPT: Final = 64
_LEAST_S: Final = 1e-3
"""Of working time, for results to tell anything."""
_PRIOR_ROLLOUTS: Final = 4.0
"""What the prior weighs, against results."""
_CLUMP: Final = 0.2
"""Results that follow after less than this share of the usual time belong together."""
_PATIENCE: Final = 2.0
"""Times the usual time between results, after which waiting counts against the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a node does per second while it has work."""

    rollouts_per_s: float
    std: float
    """How far off that may be."""
    num_samples: int
    """Results it rests on."""
    is_prior: bool = False
    """Whether it rests on what the node says of itself."""

    @property
    def is_sure(self) -> bool:
        """Whether a longer trial would hardly tell more."""
        is_steady = self.std <= STEADY * self.rollouts_per_s
        return self.num_samples >= (ENOUGH if is_steady else PLENTY)


class SpeedMeter:
    """Measures one node. Waiting for leases is left out; refused rollouts count as nothing."""

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self._results: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """Amounts, and the working time that each took."""
        self._pending_s = 0.0
        """Working time since the last result."""
        self._since_s: float | None = None
        self._idle_since_s = -inf

    def set_working(self, is_working: bool, now_s: float) -> None:
        """Note whether there is work from now on."""
        self._elapse(now_s)
        if not is_working and self._since_s is not None:
            self._idle_since_s = now_s
        self._since_s = now_s if is_working else None

    def add(self, amount: float, now_s: float) -> None:
        """Count a result."""
        self._elapse(now_s)
        took_s, self._pending_s = self._pending_s, 0.0
        usual_s = self._usual_s()
        if self._results and usual_s is not None and took_s < _CLUMP * usual_s:
            amount_before, took_before_s = self._results.pop()
            amount, took_s = amount + amount_before, took_s + took_before_s
        self._results.append((amount, took_s))

    def per_s(self) -> float | None:
        """Return the rate, or None before there was any working time to speak of."""
        amount, working_s, _ = self._weighted()
        return amount / working_s if working_s >= _LEAST_S else None

    def speed(self, now_s: float, *, prior_per_s: float | None = None) -> Speed | None:
        """Return what is known by ``now_s``; None if that is nothing.

        Args:
            now_s: the present.
            prior_per_s: what the node itself says; forgotten after a few results.
        """
        amount, working_s, num_samples = self._weighted()
        late_s = self._late_s(now_s)
        if working_s < _LEAST_S:
            return self._unseen(late_s, now_s, prior_per_s)
        measured_s = working_s + late_s
        if num_samples < ENOUGH and prior_per_s and isfinite(prior_per_s):
            # As if it had been seen to do a few at the speed it claims.
            amount += _PRIOR_ROLLOUTS
            measured_s += _PRIOR_ROLLOUTS / prior_per_s
        rate = amount / measured_s
        return Speed(rollouts_per_s=rate, std=self._std(rate, measured_s), num_samples=num_samples)

    def _unseen(self, late_s: float, now_s: float, prior_per_s: float | None) -> Speed | None:
        """Return what to think of a node that never delivered anything."""
        if late_s > SILENT_S:
            if self._since_s is None and now_s - self._idle_since_s > FORGET_S:
                self._pending_s = late_s = 0.0
            else:
                return Speed(rollouts_per_s=0.0, std=0.0, num_samples=0)
        if not prior_per_s or not isfinite(prior_per_s):
            return None
        # What it should have done by now, and did not, speaks against it.
        rate = _PRIOR_ROLLOUTS / (_PRIOR_ROLLOUTS / prior_per_s + late_s)
        return Speed(rollouts_per_s=rate, std=PRIOR_STD * rate, num_samples=0, is_prior=True)

    def _weighted(self) -> tuple[float, float, int]:
        """Return amount and working time, with older ones reduced, and the number of results."""
        amount = working_s = ago_s = 0.0
        for each, took_s in reversed(self._results):
            weight = 0.5 ** (ago_s / self._half_life_s)
            amount += weight * each
            working_s += weight * took_s
            ago_s += took_s
        return amount, working_s, len(self._results)

    def _std(self, rate: float, measured_s: float) -> float:
        """Return the standard error of a ratio of sums."""
        number = len(self._results)
        # Of the first few nobody knows how much they vary: half of it, then a fourth, and so on.
        few = rate / (2 * number)
        if number < 2:
            return few
        residuals = ago_s = 0.0
        for amount, took_s in reversed(self._results):
            weight = 0.5 ** (ago_s / self._half_life_s)
            residuals += (weight * (amount - rate * took_s)) ** 2
            ago_s += took_s
        return sqrt(residuals * number / (number - 1) / measured_s**2 + few**2)

    def _late_s(self, now_s: float) -> float:
        """Return by how much the next result is late."""
        pending_s = self._pending_s
        if self._since_s is not None:
            pending_s += max(0.0, now_s - self._since_s)
        usual_s = self._usual_s()
        return max(0.0, pending_s - _PATIENCE * usual_s) if usual_s is not None else pending_s

    def _usual_s(self) -> float | None:
        """Return the mean working time between results."""
        if not self._results:
            return None
        return sum(took_s for _, took_s in self._results) / len(self._results)

    def _elapse(self, now_s: float) -> None:
        if self._since_s is not None:
            self._pending_s += max(0.0, now_s - self._since_s)
            self._since_s = now_s


class Presence:
    """How much of its time a node is there, and for how long at a time."""

    _PRIOR_S: Final = 600.0
    """As if it had been there for so long before it joined."""
    _PRIOR_STAY_S: Final = 3600.0

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._is_here = True
        self._here_s = self._away_s = 0.0
        self._num_losses = 0

    def set_here(self, is_here: bool, now_s: float) -> None:
        """Note that it is there from now on, or isn't."""
        span_s = max(0.0, now_s - self._since_s)
        if self._is_here:
            self._here_s += span_s
        else:
            self._away_s += span_s
        if self._is_here and not is_here:
            self._num_losses += 1
        self._is_here, self._since_s = is_here, now_s

    def availability(self, now_s: float) -> float:
        """Return the share of time for which it has been there."""
        span_s = max(0.0, now_s - self._since_s)
        here_s = self._PRIOR_S + self._here_s + (span_s if self._is_here else 0.0)
        return here_s / (here_s + self._away_s + (0.0 if self._is_here else span_s))

    def stay_s(self, now_s: float) -> float:
        """Return for how long it usually stays."""
        span_s = max(0.0, now_s - self._since_s) if self._is_here else 0.0
        return (self._PRIOR_STAY_S + self._here_s + span_s) / (1 + self._num_losses)
