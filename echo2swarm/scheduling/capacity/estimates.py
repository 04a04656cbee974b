"""What was measured lately, with how much it rests on; without a clock: callers pass the time."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Final

_KEPT: Final = 2000
_Z95: Final = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEstimate:
    """A quantity that varies, as far as it is known.

    Raises:
        ValueError: a number is negative or not finite, or the quantiles are not in order.
    """

    p50: float
    p95: float
    num_samples: int
    is_prior: bool = False
    """Assumed, or from a trial before there was real work."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.p50 <= self.p95 < math.inf:
            raise ValueError(f"p50 {self.p50} and p95 {self.p95} are no quantiles of a quantity")
        if self.num_samples < 0:
            raise ValueError(f"num_samples must not be negative, got {self.num_samples}")

    def quantiles(self, count: int = 20) -> tuple[float, ...]:
        """Return ``count`` equally likely values of a lognormal with these two quantiles."""
        if self.p50 <= 0 or self.p95 == self.p50:
            return (self.p50,) * count
        sigma = math.log(self.p95 / self.p50) / _Z95
        normal = NormalDist(math.log(self.p50), sigma)
        return tuple(math.exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count))


def prior(value: float, *, p95: float | None = None) -> RunningEstimate:
    """Return what is assumed before anything was measured."""
    return RunningEstimate(
        p50=value, p95=value if p95 is None else p95, num_samples=0, is_prior=True
    )


class RecentValues:
    """Measurements of the last minutes: times, rates, whatever is not negative.

    A clock that jumps forward makes them old; one that jumps back takes them with it, so
    that none stays for ever.
    """

    def __init__(self, window_s: float) -> None:
        if not 0 < window_s < math.inf:
            raise ValueError(f"window_s must be positive and finite, got {window_s}")
        self._window_s = window_s
        self._values: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self.num_refused = 0
        """Values that could not have been measured: negative, infinite, no numbers."""

    def add(self, value: float, now_s: float) -> bool:
        """Enter one measurement; returns whether it was one."""
        if not (0 <= value < math.inf and math.isfinite(now_s)):
            self.num_refused += 1
            return False
        self._follow(now_s)
        self._values.append((now_s, float(value)))
        return True

    def get(self, now_s: float) -> list[float]:
        """Return those of the window; the last one however old it is."""
        self._follow(now_s)
        recent = [value for at_s, value in self._values if at_s >= now_s - self._window_s]
        return recent or [value for _, value in list(self._values)[-1:]]

    def estimate(self, now_s: float) -> RunningEstimate | None:
        """Return what they say; None of none."""
        values = self.get(now_s)
        if not values:
            return None
        middle = median(values)
        return RunningEstimate(
            p50=middle, p95=max(middle, percentile_95(values)), num_samples=len(values)
        )

    def _follow(self, now_s: float) -> None:
        """Move what was measured back with a clock that went back."""
        if self._values and math.isfinite(now_s) and (back_s := self._values[-1][0] - now_s) > 0:
            moved = [(at_s - back_s, value) for at_s, value in self._values]
            self._values = deque(moved, maxlen=_KEPT)


def percentile_95(values: Sequence[float]) -> float:
    """Return the 95th percentile, which is the largest of fewer than 20.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("no values")
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
