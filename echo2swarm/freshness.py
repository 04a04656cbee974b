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


def judge(*, version: int, step: int, max_staleness: int) -> Freshness:
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


def expected_use_step(
    *,
    next_step: int,
    groups_ahead: int,
    groups_per_step: int,
    rollout_s: float | None = None,
    step_s: float | None = None,
) -> int:
    """Return the step whose update is expected to use a group that is leased now.

    Groups are consumed in order, so it waits for those ahead of it. While the next update
    still lacks groups the learner waits for this one, however slow its node is; else the
    learner goes on in the meantime, one step every ``step_s``.

    Args:
        next_step: the next update that has no batch yet.
        groups_ahead: groups in flight or buffered already.
        groups_per_step: consumed by one update.
        rollout_s: what this node takes from lease to submission, where measured.
        step_s: the learner's period, where measured.
    """
    by_position = groups_ahead // groups_per_step
    if by_position == 0 or rollout_s is None or not step_s:
        return next_step + by_position
    return next_step + max(by_position, floor(rollout_s / step_s))


def can_be_fresh(*, version: int, use_step: int, max_staleness: int) -> bool:
    """Whether a rollout made with ``version`` is still usable at ``use_step``."""
    return use_step <= last_usable_step(version, max_staleness=max_staleness)
