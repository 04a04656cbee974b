"""What one update uses: whole groups, the oldest usable ones, none of them stale."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from echo2swarm.scheduling.leases.groups import CompleteGroup
from echo2swarm.scheduling.staleness import Freshness, judge_staleness, oldest_usable_version
from protocols.ids import GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """What one update uses."""

    step: int
    """Steps done before the update: the version it starts from."""
    groups: tuple[CompleteGroup, ...]

    def staleness(self) -> dict[int, int]:
        """Return how many rollouts there are of each staleness."""
        histogram: dict[int, int] = {}
        for group in self.groups:
            for rollout in group.rollouts:
                lag = self.step - rollout.version
                histogram[lag] = histogram.get(lag, 0) + 1
        return histogram

    def assert_fresh(self, *, max_staleness: int) -> None:
        """Check the bound once more, at the moment of use.

        Raises:
            AssertionError: a rollout is outside it; training on it would break the one
                promise that asynchronous training rests on, so the run must not go on.
        """
        for group in self.groups:
            for rollout in group.rollouts:
                verdict = judge_staleness(
                    version=rollout.version, step=self.step, max_staleness=max_staleness
                )
                if verdict is not Freshness.ADMIT:
                    raise AssertionError(
                        f"group {group.group_id} has a rollout of version {rollout.version}, "
                        f"{verdict} at step {self.step} with max_staleness {max_staleness}"
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """The outcome of an attempt to form a batch."""

    batch: TrainingBatch | None
    """None while there are too few usable groups."""
    stale: tuple[CompleteGroup, ...]
    """Groups that no update can use any more."""


class ReadyGroups:
    """Complete groups, sorted by their oldest version."""

    def __init__(self) -> None:
        self._groups: dict[GroupId, CompleteGroup] = {}
        self._usable: dict[int, dict[GroupId, CompleteGroup]] = {}
        """By oldest version."""
        self._early: dict[GroupId, CompleteGroup] = {}
        """Those with a result of a version that no update has started from yet."""
        self._step = -1

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[CompleteGroup]:
        """In the order in which they became complete."""
        return iter(self._groups.values())

    def get(self, group_id: GroupId) -> CompleteGroup | None:
        """Return a group, if it is here."""
        return self._groups.get(group_id)

    def add(self, group: CompleteGroup) -> None:
        """Take in a group."""
        self._groups[group.group_id] = group
        self._sort_in(group)

    def remove(self, group_id: GroupId) -> CompleteGroup | None:
        """Remove a group and return it, if it is here."""
        group = self._groups.pop(group_id, None)
        if group is None:
            return None
        if self._early.pop(group_id, None) is None:
            bucket = self._usable[group.oldest_version]
            del bucket[group_id]
            if not bucket:
                del self._usable[group.oldest_version]
        return group

    def older_than(self, version: int) -> list[CompleteGroup]:
        """Return the groups with a result of a version before ``version``."""
        found = [g for v, bucket in self._usable.items() if v < version for g in bucket.values()]
        return found + [g for g in self._early.values() if g.oldest_version < version]

    def form(self, *, step: int, groups_per_step: int, max_staleness: int) -> Formed:
        """Choose the groups of the update that starts from version ``step``; they stay here.

        A group of a version beyond ``step`` is for a later update.
        """
        if step != self._step:
            self._step = step
            early, self._early = self._early, {}
            for group in early.values():
                self._sort_in(group)
        oldest = oldest_usable_version(step, max_staleness=max_staleness)
        versions = sorted(v for v in self._usable if v >= oldest)
        groups: list[CompleteGroup] = []
        if sum(len(self._usable[v]) for v in versions) >= groups_per_step:
            for version in versions:
                bucket = self._usable[version]
                groups += [bucket[group_id] for group_id in sorted(bucket)]
                if len(groups) >= groups_per_step:
                    break
        batch = TrainingBatch(step=step, groups=tuple(groups[:groups_per_step])) if groups else None
        return Formed(batch=batch, stale=tuple(self.older_than(oldest)))

    def _sort_in(self, group: CompleteGroup) -> None:
        if group.newest_version > self._step:
            self._early[group.group_id] = group
        else:
            self._usable.setdefault(group.oldest_version, {})[group.group_id] = group


def form(
    ready: Iterable[CompleteGroup], *, step: int, groups_per_step: int, max_staleness: int
) -> Formed:
    """Do as :meth:`ReadyGroups.form`, with any groups."""
    groups = ReadyGroups()
    for group in ready:
        groups.add(group)
    return groups.form(step=step, groups_per_step=groups_per_step, max_staleness=max_staleness)


def in_order(groups: Iterable[CompleteGroup]) -> tuple[CompleteGroup, ...]:
    """Return groups in the order in which updates use them, whatever order they came in."""
    return tuple(sorted(groups, key=lambda group: (group.oldest_version, group.group_id)))
