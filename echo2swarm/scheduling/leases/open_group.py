"""A group that lacks results, and the places in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from echo2swarm.scheduling.leases.groups import AcceptedRollout, DropReason
from protocols.ids import GroupId, LeaseId, PeerId


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group that will never be trained on."""

    group_id: GroupId
    reason: DropReason


@dataclass(slots=True)
class Slot:
    """The place of one completion in its group."""

    num_leased: int = 0
    num_failed: int = 0
    """Leases of it that came to nothing."""
    num_unscorable: int = 0
    """Results of it that the task's verifier failed on."""
    holder: LeaseId | None = None
    backup: LeaseId | None = None
    """Who else is at work on it, because the holder is late."""
    judging: LeaseId | None = None
    """Whose result is being judged."""
    rollout: AcceptedRollout | None = None

    @property
    def is_missing(self) -> bool:
        """Whether nobody is at work on it."""
        return self.holder is None and self.rollout is None and self.judging is None

    def may_be_backed_up(self, holder: LeaseId) -> bool:
        """Whether ``holder``, and nobody else, is at work on it."""
        return self.holder == holder and self.backup is None and self.judging is None


class OpenGroup:
    """A group that lacks results."""

    __slots__ = (
        "avoid",
        "group_id",
        "num_accepted",
        "num_missing",
        "num_tokens",
        "oldest_version",
        "prompt_tokens",
        "slots",
        "version",
    )

    def __init__(self, *, group_id: GroupId, prompt_tokens: bytes, slots: Sequence[Slot]) -> None:
        self.group_id = group_id
        self.prompt_tokens = prompt_tokens
        self.slots = list(slots)
        self.avoid: set[PeerId] = set()
        """Nodes that failed on it; others are asked first."""
        self.version = 0
        """What its staleness counts from, so far as is known."""
        self.oldest_version: int | None = None
        """Of the results it has."""
        self.num_missing = sum(slot.is_missing for slot in self.slots)
        self.num_accepted = self.num_tokens = 0
        for slot in self.slots:
            if slot.rollout is not None:
                self.took(slot.rollout)

    @property
    def missing(self) -> list[int]:
        """The places nobody is at work on."""
        if not self.num_missing:
            return []
        return [index for index, slot in enumerate(self.slots) if slot.is_missing]

    @property
    def mean_tokens(self) -> float | None:
        """How long its completions are, as far as there are any."""
        return self.num_tokens / self.num_accepted if self.num_accepted else None

    def took(self, rollout: AcceptedRollout) -> None:
        """Count a result."""
        self.num_accepted += 1
        self.num_tokens += rollout.num_tokens
        oldest = self.oldest_version
        self.oldest_version = rollout.version if oldest is None else min(oldest, rollout.version)
