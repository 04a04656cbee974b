"""What a simulated node has in hand: questions, leases, and how far each lease is.

By the rules of the live node: two leases, so that the engine need not wait for the next one;
questions that a new version has overtaken do not keep it from asking anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from protocols.leases import Lease, LeasedGroup

MAX_LEASES: Final = 2
"""In hand: one being sampled, and one so that the engine need not wait."""


@dataclass(frozen=True, slots=True)
class Part:
    """Groups of one lease that are sampled together."""

    lease_id: str
    groups: tuple[LeasedGroup, ...]

    @property
    def num_completions(self) -> int:
        """How many completions it asks for."""
        return sum(len(group.samples) for group in self.groups)


@dataclass(slots=True)
class _Held:
    lease: Lease
    todo: list[LeasedGroup]
    is_sampling: bool = False
    num_unsent: int = 0

    @property
    def is_begun(self) -> bool:
        return self.is_sampling or self.num_unsent > 0 or len(self.todo) < len(self.lease.groups)

    @property
    def is_done(self) -> bool:
        return not (self.todo or self.is_sampling or self.num_unsent)


@dataclass(slots=True)
class InHand:
    """Questions and leases of one node."""

    _asking: list[int] = field(default_factory=list)
    """With which versions."""
    _held: dict[str, _Held] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is no lease."""
        return not self._held

    def ask(self, version: int) -> bool:
        """Return whether to ask for one more lease, and note that it is asked for."""
        num_current = self._asking.count(version)
        num_overtaken = len(self._asking) - num_current
        if num_overtaken > MAX_LEASES or num_current + len(self._held) >= MAX_LEASES:
            return False
        self._asking.append(version)
        return True

    def answered(self, version: int) -> None:
        """Note the answer to a question."""
        if version in self._asking:
            self._asking.remove(version)

    def ask_no_more(self) -> None:
        """Forget the questions: their answers are not wanted."""
        self._asking.clear()

    def add(self, lease: Lease) -> None:
        """Take in a lease."""
        self._held[lease.lease_id] = _Held(lease, list(lease.groups))

    def next_batch(self, version: int, room: int) -> list[Part]:
        """Return what to sample together, at most ``room`` completions, or one group."""
        parts: list[Part] = []
        for held in self._held.values():
            if held.lease.min_version > version or held.is_sampling or not held.todo:
                continue
            num_groups = 0
            for group in held.todo:
                if len(group.samples) > room and (parts or num_groups):
                    break
                num_groups += 1
                room -= len(group.samples)
            if not num_groups:
                break
            parts.append(Part(held.lease.lease_id, tuple(held.todo[:num_groups])))
            held.is_sampling, held.todo = True, held.todo[num_groups:]
        return parts

    def sampled(self, part: Part) -> bool:
        """Note that a part is sampled; returns whether its lease is still in hand."""
        held = self._held.get(part.lease_id)
        if held is None:
            return False
        held.is_sampling = False
        held.num_unsent += part.num_completions
        return True

    def judged(self, lease_id: str, num_rollouts: int) -> bool:
        """Note verdicts; returns whether they ended the lease."""
        held = self._held.get(lease_id)
        if held is None:
            return False
        held.num_unsent -= num_rollouts
        if not held.is_done:
            return False
        del self._held[lease_id]
        return True

    def forget_late(self, step: int) -> bool:
        """Drop the leases whose deadline the learner has passed; returns whether there were."""
        late = [i for i, held in self._held.items() if held.lease.deadline_step < step]
        for lease_id in late:
            del self._held[lease_id]
        return bool(late)

    def hand_back_not_begun(self) -> Iterator[str]:
        """Give up the leases of which nothing is done, and yield them."""
        for lease_id in [i for i, held in self._held.items() if not held.is_begun]:
            del self._held[lease_id]
            yield lease_id
