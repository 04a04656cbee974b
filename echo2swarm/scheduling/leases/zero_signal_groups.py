"""Groups whose completions are all worth the same: they have no advantages, and teach nothing.

DAPO (arXiv:2503.14476, section 3.2) replaces them by other prompts, "dynamic sampling", so
that every update has as much to learn from. Here a group is dropped the moment it is complete,
and its place is free for the next prompt. At most so many per update: where hardly any group
teaches, an update with less to learn from is better than none.
"""

from math import ceil
from typing import Final

from echo2swarm.scheduling.leases.groups import CompleteGroup

_KEEP: Final = 0.97
"""The weight of what was known, against one more group."""


def is_equal(group: CompleteGroup) -> bool:
    """Whether all completions of a group are worth the same."""
    first = group.rollouts[0].reward
    return all(rollout.reward == first for rollout in group.rollouts)


class ZeroSignalGroups:
    """Decides which are replaced, and knows how many groups it takes to get one that is used.

    Args:
        max_per_step: most groups replaced for one update; 0 keeps all of them.
        groups_per_step: consumed by one update.
    """

    def __init__(self, *, max_per_step: int, groups_per_step: int) -> None:
        self._max_per_step = max_per_step
        self._least_share = groups_per_step / (groups_per_step + max_per_step)
        self._used_share = 1.0
        self.num_replaced = 0
        """For the next update, so far."""
        self.num_kept = 0
        """Complete groups without signal that take part in an update, since the last one."""

    @property
    def used_share(self) -> float:
        """The share of complete groups that are used, lately; 1 if all are kept."""
        return self._used_share

    def is_to_be_replaced(self, group: CompleteGroup) -> bool:
        """Judge a group that has become complete."""
        is_without_signal = is_equal(group)
        is_replaced = is_without_signal and self.num_replaced < self._max_per_step
        self.num_replaced += is_replaced
        self.num_kept += is_without_signal and not is_replaced
        if self._max_per_step:
            share = _KEEP * self._used_share + (1 - _KEEP) * (not is_replaced)
            self._used_share = max(share, self._least_share)
        return is_replaced

    def next_step(self) -> None:
        """Note that the next update is another one."""
        self.num_replaced = self.num_kept = 0

    def num_to_get(self, num_used: float) -> int:
        """Return how many groups must be made to get so many that are used; 0 for none."""
        return max(0, ceil(num_used / self._used_share - 1e-9))
