"""Bounded staleness: which rollouts may be trained on, and which work is worth leasing.

The rule: a rollout of version v may enter the update that starts from version t
iff ``t - v <= max_staleness``. Its version is the oldest that sampled any of its
tokens. Everything here is a total function of its arguments; the live learner
and whoever simulates it call the same ones.
"""

from enum import StrEnum
from math import floor


class Freshness(StrEnum):
    """What the bound says of a rollout."""

    ADMIT = "admit"
    STALE = "stale"
    FROM_THE_FUTURE = "from_the_future"


def judge_staleness(*, version: int, step: int, max_staleness: int) -> Freshness:
    """Judge a rollout of ``version`` for the update that starts from version ``step``."""
    if version > step:
        return Freshness.FROM_THE_FUTURE
    return Freshness.ADMIT if step - version <= max_staleness else Freshness.STALE


def last_usable_step(version: int, *, max_staleness: int) -> int:
    """Return the last step whose update may use rollouts of ``version``."""
    return version + max_staleness


def oldest_usable_version(step: int, *, max_staleness: int) -> int:
    """Return the oldest version whose rollouts the update from ``step`` may use."""
    return max(0, step - max_staleness)


def max_groups_outstanding(
    *, groups_per_step: int, max_staleness: int, publish_every: int, headroom: float
) -> int:
    """Return how many groups may be in flight or buffered at once: the learner's pacing.

    More than this would be stale before its turn comes. One step's worth is always
    allowed, so that work is scheduled at ``max_staleness`` 0 too.
    """
    steps_ahead = max_staleness - publish_every + 1
    return max(groups_per_step, floor(groups_per_step * steps_ahead * (1 + headroom)))


def expected_start_s(
    use_step: int, *, next_step: int, last_start_s: float, period_s: float, now_s: float
) -> float:
    """Return when the update from ``use_step`` is expected to start.

    It is the end of all work for it: what comes later is for a later update. A learner that
    has waited longer than usual is expected to wait as long again: what would be late by its
    usual pace is then better than nothing, and in the end everybody is asked.

    Args:
        use_step: which update.
        next_step: the next update that has no batch yet.
        last_start_s: when the update before that got its batch.
        period_s: the learner's period: from one batch to the next.
        now_s: the present.
    """
    due_s = last_start_s + period_s
    next_start_s = max(due_s, now_s + (now_s - due_s))
    return next_start_s + (use_step - next_step) * period_s
