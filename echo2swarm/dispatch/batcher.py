"""Which groups the next update uses: whole ones, oldest usable first, none of them stale."""

from collections.abc import Iterable
from dataclasses import dataclass

from echo2swarm.dispatch.groups import CompleteGroup
from echo2swarm.freshness import Freshness, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
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
                verdict = judge(
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

    batch: Batch | None
    """None while there are too few usable groups."""
    stale: tuple[CompleteGroup, ...]
    """Groups that no update can use any more."""


def form(
    ready: Iterable[CompleteGroup], *, step: int, groups_per_step: int, max_staleness: int
) -> Formed:
    """Choose the groups of the update that starts from version ``step``.

    A group of a version beyond ``step`` stays where it is, for a later update.
    """
    usable: list[CompleteGroup] = []
    stale: list[CompleteGroup] = []
    for group in ready:
        oldest = judge(version=group.oldest_version, step=step, max_staleness=max_staleness)
        newest_version = max(rollout.version for rollout in group.rollouts)
        if oldest is Freshness.STALE:
            stale.append(group)
        elif newest_version <= step:
            usable.append(group)
    batch = None
    if len(usable) >= groups_per_step:
        batch = Batch(step=step, groups=in_order(usable)[:groups_per_step])
    return Formed(batch=batch, stale=tuple(stale))


def in_order(groups: Iterable[CompleteGroup]) -> tuple[CompleteGroup, ...]:
    """Return groups in the order in which updates use them, whatever order they came in."""
    return tuple(sorted(groups, key=lambda group: (group.oldest_version, group.group_id)))
