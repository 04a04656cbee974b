"""A prompt and its completions, from the first lease to the update that uses them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from protocols.ids import GroupId, PeerId, PolicyVersion


class QueuedPrompt(Protocol):
    """What dispatch needs to know of a prompt."""

    @property
    def index(self) -> int:
        """Its number in the run; the group's id."""
        ...

    @property
    def tokens(self) -> bytes:
        """Packed."""
        ...


class DropReason(StrEnum):
    """Why a prompt that was leased was never trained on; the value is what the ledger holds."""

    STALE = "stale"
    """Its completions became too old before an update could use them."""
    GAVE_UP = "gave_up"
    """One of its completions was leased too often without an acceptable result."""
    EQUAL = "equal"
    """All of its completions were worth the same, and another prompt took its place."""
    RESUMED = "resumed"
    """It was sampled with versions that the resumed run has not reached."""
    RUN_ENDED = "run_ended"
    """The last update needed it no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRollout:
    """One completion that passed every check, with the learner's own score."""

    tokens: bytes
    """Packed."""
    logprobs: bytes
    """Packed."""
    version: PolicyVersion
    """The oldest version that sampled any of its tokens."""
    reward: float
    is_truncated: bool
    peer: PeerId
    text: str = ""

    @property
    def num_tokens(self) -> int:
        """Length of the completion."""
        return len(self.tokens) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteGroup:
    """A prompt with all its completions, ready for an update."""

    group_id: GroupId
    prompt_tokens: bytes
    rollouts: tuple[AcceptedRollout, ...]

    @property
    def oldest_version(self) -> PolicyVersion:
        """The version that the group's staleness counts from."""
        return min(rollout.version for rollout in self.rollouts)

    @property
    def newest_version(self) -> PolicyVersion:
        """The version of its newest completion."""
        return max(rollout.version for rollout in self.rollouts)
