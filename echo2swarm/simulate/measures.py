"""What the simulated learner measures: T, B and g, as the live one does."""

from statistics import median

from echo2swarm.scheduling.capacity import RecentValues, percentile_95
from echo2swarm.system.rates import WindowSum

WINDOW_S = 300.0


class Measures:
    """Sliding windows, and all that ever was measured of B and g."""

    def __init__(self) -> None:
        self.train_s = RecentValues(WINDOW_S)
        self.broadcast_s = RecentValues(WINDOW_S)
        self.rollout_s = RecentValues(WINDOW_S)
        self.accepted = WindowSum(WINDOW_S, started_s=0.0)

    def typical_train_s(self, now_s: float) -> float | None:
        """T: the median."""
        values = self.train_s.get(now_s)
        return median(values) if values else None


def p95(values: RecentValues, now_s: float) -> float:
    """Return the 95th percentile, 0 before there is a measurement."""
    recent = values.get(now_s)
    return percentile_95(recent) if recent else 0.0
