"""What the ledger records of an evaluation on the swarm: scored samples and their numbers."""

from dataclasses import dataclass
from typing import Final

from protocols.ids import GroupId, PeerId

FIRST_GROUP: Final = 2**62
"""Held-out prompt number 0 as a group; no prompt of training has such a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """One judged sample."""

    reward: float
    is_failed: bool
    """The verifier failed on it; it counts as 0."""
    num_tokens: int
    is_truncated: bool
    peer: PeerId
    text: str = ""


def group_of(prompt_index: int) -> GroupId:
    """Return the group that a held-out prompt travels as."""
    return GroupId(FIRST_GROUP + prompt_index)
