"""The leases in hand, without I/O: what to do next, and what became of them.

A lease is worked off in parts of at most one engine batch, so that a newer
policy is applied between parts, and finished parts are on their way while the
rest is sampled. A lease that names a newest version keeps the engine at it until
the lease is done. An engine that batches by itself is given group by group, up to
what it takes at once. Every lease ends in one of three ways: all of it was submitted,
it was handed back (after what was finished of it was submitted), or the learner
has given up on it (its deadline step has passed).
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from echo2swarm.scheduling.held_lease import (
    HeldLease,
    first_groups,
    is_passed,
    num_completions_of,
)
from protocols.ids import PolicyVersion
from protocols.leases import Lease, LeasedGroup
from protocols.sampling import SamplingParams

MAX_LEASES: Final = 2
"""In hand: one being sampled, and one so that the engine need not wait for the next."""
MAX_LEASES_CONTINUOUS: Final = 3
"""As one ends, another is in full swing, and the third has begun."""
MAX_UNSENT: Final = 4
"""Submissions that wait behind the one under way; when there are more, the engine waits too."""
MAX_DEATHS: Final = 2
"""Once may be chance: a version that the engine died on so often is not given to it for a while."""


@dataclass(frozen=True, slots=True)
class LeasePart:
    """Some groups of one lease."""

    lease_id: str
    groups: tuple[LeasedGroup, ...]

    @property
    def num_completions(self) -> int:
        """How many completions it asks for."""
        return sum(len(group.samples) for group in self.groups)


@dataclass(frozen=True, slots=True)
class Apply:
    """Load this version into the engine first."""

    version: PolicyVersion


@dataclass(frozen=True, slots=True)
class SampleParts:
    """Sample these together; then say of each part that it is sampled, or is not."""

    parts: tuple[LeasePart, ...]
    sampling: SamplingParams


Job = Apply | SampleParts


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Tell the learner that no more will come of this lease."""

    lease_id: str
    why: str


@dataclass(frozen=True, slots=True)
class LeaseDone:
    """Everything of this lease was submitted."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The learner has given up on this lease: nothing to tell it."""

    lease_id: str
    why: str


Ending = GiveBack | LeaseDone | Forget


class Workload:
    """All leases of one node.

    Args:
        max_leases: to have in hand at once: the one being sampled, and those that wait so
            that the engine never does. Questions that a new version has overtaken may
            bring as many again.
        max_batch: completions to sample at once.
        is_continuous: whether the engine takes more while it samples.
    """

    def __init__(self, *, max_leases: int, max_batch: int, is_continuous: bool = False) -> None:
        self._max_leases = max_leases
        self._max_batch = max_batch
        self._is_continuous = is_continuous
        self._held: dict[str, HeldLease] = {}
        self._asking: list[PolicyVersion] = []
        self._is_taking = False
        self._learner_step = 0
        self._refused_versions: set[PolicyVersion] = set()
        self._num_deaths: Counter[PolicyVersion] = Counter()
        self._kept: PolicyVersion | None = None
        """What the last lease for one version was of, until it is known if another follows."""

    @property
    def num_leases(self) -> int:
        """Leases in hand."""
        return len(self._held)

    @property
    def num_rollouts(self) -> int:
        """Completions in hand: to be sampled, being sampled, or not yet submitted."""
        return sum(held.num_completions for held in self._held.values())

    @property
    def is_taking(self) -> bool:
        """Whether leases are asked for."""
        return self._is_taking

    @property
    def learner_step(self) -> int:
        """The learner's step, as far as it has told."""
        return self._learner_step

    @property
    def asking(self) -> tuple[PolicyVersion, ...]:
        """The versions of the questions on their way."""
        return tuple(self._asking)

    # Asking for work.

    def take(self, *, is_wanted: bool) -> None:
        """Ask for leases from now on, or ask for no more."""
        self._is_taking = is_wanted

    def may_ask(self, applied_version: PolicyVersion | None) -> bool:
        """Return whether to ask for one more lease now.

        A question is answered for the version it was asked with, and may wait for its answer;
        so one that names an older version does not keep us from asking anew.
        """
        if not self._is_taking or applied_version is None:
            return False
        num_current = sum(version == applied_version for version in self._asking)
        if len(self._asking) - num_current > self._max_leases:
            return False
        return num_current + self.num_leases < self._max_leases

    def asked(self, version: PolicyVersion) -> None:
        """Note that a question is on its way."""
        self._asking.append(version)

    def answered(self, version: PolicyVersion) -> None:
        """Note that it was answered, or has failed."""
        self._asking.remove(version)

    def add(self, lease: Lease) -> list[Ending]:
        """Take in a lease; one that comes when none is wanted any more goes straight back."""
        if lease.lease_id in self._held:
            return []
        if not self._is_taking:
            return [GiveBack(lease.lease_id, "this node takes no more work now")]
        self._held[lease.lease_id] = HeldLease(lease, list(lease.groups))
        self._kept = None
        return []

    # Doing it.

    def next_job(
        self, applied: PolicyVersion | None, held_versions: Collection[PolicyVersion]
    ) -> Job | None:
        """Return what the engine should do now; None if it has to wait.

        Args:
            applied: what the engine samples with.
            held_versions: those that are whole on this machine.
        """
        wanted = self._wanted_version(applied, held_versions)
        if wanted is not None and (applied is None or wanted > applied):
            return Apply(wanted)
        if applied is None:
            return None
        if self._is_continuous:
            return self._next_group(applied)
        parts: list[LeasePart] = []
        sampling: SamplingParams | None = None
        room = self._max_batch
        for held in self._held.values():
            if not held.takes(applied) or not held.todo or held.sampling:
                continue
            if sampling is not None and held.lease.sampling != sampling:
                continue
            groups = first_groups(held.todo, room, at_least_one=not parts)
            if not groups:
                break
            sampling = held.lease.sampling
            held.sampling, held.todo = groups, held.todo[len(groups) :]
            room -= num_completions_of(groups)
            parts.append(LeasePart(held.lease.lease_id, tuple(groups)))
        return None if sampling is None else SampleParts(tuple(parts), sampling)

    def _next_group(self, applied: PolicyVersion) -> SampleParts | None:
        room = self._max_batch - sum(num_completions_of(h.sampling) for h in self._held.values())
        for held in self._held.values():
            if not held.takes(applied) or not held.todo:
                continue
            groups = first_groups(held.todo[:1], room, at_least_one=room == self._max_batch)
            if not groups:
                return None  # others must not overtake what does not fit yet
            held.todo = held.todo[1:]
            held.sampling = [*held.sampling, *groups]
            return SampleParts(
                (LeasePart(held.lease.lease_id, tuple(groups)),), held.lease.sampling
            )
        return None

    def _wanted_version(
        self, applied: PolicyVersion | None, held_versions: Collection[PolicyVersion]
    ) -> PolicyVersion | None:
        if applied is not None and any(held.holds(applied) for held in self._held.values()):
            return applied
        usable = [version for version in held_versions if version not in self._refused_versions]
        if applied is None:
            # On one that has proven good, the engine comes back; then the other is tried again.
            harmless = [version for version in usable if not self._num_deaths[version]]
            usable = harmless or usable
            usable = [v for v in usable if any(h.holds(v) for h in self._held.values())] or usable
        return max(usable, default=None)

    def refuse_version(self, version: PolicyVersion) -> None:
        """Do not try this version until :meth:`try_again`: it can't be applied."""
        self._refused_versions.add(version)

    def died_applying(self, version: PolicyVersion) -> bool:
        """Note that the engine died when it was given this version.

        Returns:
            Whether that makes it one not to try for now.
        """
        self._num_deaths[version] += 1
        if self._num_deaths[version] >= MAX_DEATHS:
            self.refuse_version(version)
        return version in self._refused_versions

    def applied(self, version: PolicyVersion) -> None:
        """Note that the engine has taken this version: if it dies later, it is not of it."""
        del self._num_deaths[version]

    def try_again(self) -> None:
        """Forget which versions were refused: it may have been for want of memory, for a while."""
        self._refused_versions.clear()

    def sampled(self, part: LeasePart) -> bool:
        """Note that a part is complete; returns whether to submit it."""
        held = self._held.get(part.lease_id)
        if held is None:
            return False
        done = {group.group_id for group in part.groups}
        others = [group for group in held.sampling if group.group_id not in done]
        if len(others) == len(held.sampling):
            return False  # given up meanwhile
        held.sampling = others
        held.num_unsent += part.num_completions
        return True

    def not_sampled(self, lease_id: str, why: str) -> list[Ending]:
        """Note that a part can't be sampled; what is left of the lease goes back."""
        held = self._held.get(lease_id)
        if held is None:
            return []
        held.sampling = []
        return self._give_up(held, why)

    def submitted(self, lease_id: str, num_rollouts: int) -> list[Ending]:
        """Note that so many rollouts need no more attention: judged, or refused for good."""
        held = self._held.get(lease_id)
        if held is None:
            return []
        held.num_unsent -= num_rollouts
        return self._settle(held)

    def has(self, lease_id: str) -> bool:
        """Return whether a lease is still in hand."""
        return lease_id in self._held

    # Ending early.

    def step_heard(self, step: int) -> list[Ending]:
        """Take in the learner's step; leases whose deadline it has passed are worth nothing."""
        # A learner that starts again from a checkpoint goes back.
        self._learner_step = step
        late = [held for held in self._held.values() if held.lease.deadline_step < step]
        for held in late:
            del self._held[held.lease.lease_id]
        return [
            Forget(
                held.lease.lease_id,
                f"the learner is at step {step}, past deadline {held.lease.deadline_step}",
            )
            for held in late
        ]

    def is_kept(self, applied: PolicyVersion | None) -> bool:
        """Whether to stay at a version for a moment: a lease for it was done just now.

        The learner may have another one, which would come too late for an engine that went on.
        """
        return self._is_taking and applied is not None and applied == self._kept

    def let_go(self) -> None:
        """Stay no longer: no other lease has come."""
        self._kept = None

    def passed(self, applied: PolicyVersion | None) -> list[Ending]:
        """Give back the leases that want an older version than the engine has now."""
        late = [held for held in self._held.values() if is_passed(held, applied)]
        return [
            ending
            for held in late
            for ending in self._give_up(held, f"the engine is at version {applied} already")
        ]

    def lease_lost(self, lease_id: str, why: str) -> list[Ending]:
        """Drop a lease that the learner does not know any more."""
        if self._held.pop(lease_id, None) is None:
            return []
        return [Forget(lease_id, why)]

    def hand_back(self, why: str, *, only_not_begun: bool = False) -> list[Ending]:
        """Give up what is not sampled, of all leases or of those that are not begun."""
        return [
            ending
            for held in list(self._held.values())
            if not (only_not_begun and held.is_begun)
            for ending in self._give_up(held, why)
        ]

    def hand_back_unbegun(self, why: str) -> list[Ending]:
        """Give up what is not even being sampled; the rest is finished and submitted."""
        endings: list[Ending] = []
        for held in list(self._held.values()):
            if held.todo:
                held.given_up = held.given_up or why
                held.todo = []
            endings += self._settle(held)
        return endings

    def _give_up(self, held: HeldLease, why: str) -> list[Ending]:
        if held.todo or held.sampling or not held.num_unsent:
            held.given_up = held.given_up or why
        held.todo, held.sampling = [], []
        return self._settle(held)

    def _settle(self, held: HeldLease) -> list[Ending]:
        if held.todo or held.sampling or held.num_unsent > 0:
            return []
        lease_id = held.lease.lease_id
        del self._held[lease_id]
        if held.given_up is None and held.lease.max_version is not None:
            self._kept = PolicyVersion(held.lease.max_version)
        return [LeaseDone(lease_id) if held.given_up is None else GiveBack(lease_id, held.given_up)]
