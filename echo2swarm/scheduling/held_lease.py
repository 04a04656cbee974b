"""One lease that a node has in hand, for :mod:`echo2swarm.scheduling.workload`."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocols.ids import PolicyVersion
from protocols.leases import Lease, LeasedGroup


@dataclass(slots=True)
class HeldLease:
    """A lease that a node has in hand."""

    lease: Lease
    todo: list[LeasedGroup]
    sampling: list[LeasedGroup] = field(default_factory=list)
    num_unsent: int = 0
    given_up: str | None = None
    """Why nothing more of it will be sampled."""

    @property
    def is_begun(self) -> bool:
        """Whether anything of it was sampled, or is being sampled."""
        return bool(self.sampling) or self.num_unsent > 0 or len(self.todo) < len(self.lease.groups)

    @property
    def num_completions(self) -> int:
        """Completions to be sampled, being sampled, or not yet submitted."""
        return num_completions_of(self.todo) + num_completions_of(self.sampling) + self.num_unsent

    def takes(self, version: PolicyVersion) -> bool:
        """Whether it may be sampled with ``version``."""
        most = self.lease.max_version
        return self.lease.min_version <= version and (most is None or version <= most)

    def holds(self, version: PolicyVersion) -> bool:
        """Whether it keeps the engine at ``version``."""
        return self.lease.max_version is not None and self.takes(version)


def is_passed(held: HeldLease, applied: PolicyVersion | None) -> bool:
    """Return whether a lease wants an older version than ``applied``."""
    most = held.lease.max_version
    return most is not None and applied is not None and most < applied


def num_completions_of(groups: Iterable[LeasedGroup]) -> int:
    """Return how many completions some groups ask for."""
    return sum(len(group.samples) for group in groups)


def first_groups(groups: list[LeasedGroup], room: int, *, at_least_one: bool) -> list[LeasedGroup]:
    """Return the first groups that fit."""
    taken: list[LeasedGroup] = []
    for group in groups:
        if len(group.samples) > room and not (at_least_one and not taken):
            break
        taken.append(group)
        room -= len(group.samples)
    return taken
