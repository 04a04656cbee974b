"""How much rollout throughput keeps the learner busy, as a pure function."""

from math import inf


def required_rollouts_per_s(
    *,
    rollouts_per_step: int,
    train_s: float,
    max_staleness: int,
    publish_every: int,
    broadcast_s: float,
    rollout_s: float,
) -> float:
    """Return the supply from which on the learner never waits; infinite if it must wait.

    A version can be sampled with from ``broadcast_s`` after it was published until the
    update ``max_staleness`` steps later begins, and a rollout begun in that time takes
    ``rollout_s``. What remains of it is the time in which one step's rollouts are made.
    """
    usable_s = (max_staleness - publish_every + 1) * train_s - broadcast_s - rollout_s
    within_s = min(train_s, usable_s)
    return rollouts_per_step / within_s if within_s > 0 else inf
