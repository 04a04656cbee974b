"""What scoring offers to the rest of the learner."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from learner.scoring.messages import CompletionToScore, Prompts, Reward
from protocols.leases import MAX_PROMPT_TOKENS


class Scorer(Protocol):
    """Runs the task. It restarts by itself; what it can't do raises ``ChildError``."""

    async def draw(self, start: int, count: int) -> Prompts:
        """Return prompts number ``start`` to ``start + count - 1``; fewer at the end of them.

        Those that can't be made are named apart.
        """
        ...

    async def score(
        self, completions: Sequence[CompletionToScore], *, owner: str = ""
    ) -> Sequence[Reward]:
        """Score completions, in their order.

        Args:
            completions: what to score.
            owner: the node that they came from, which gets its share of the scorer's time; empty
                for the learner's own.
        """
        ...

    def wait_of(self, owner: str) -> str | None:
        """Return why nothing of a node is scored for a while; None if it need not wait."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The prompts that are never trained on."""

    scorer: Scorer
    """Numbers them from 0; a scorer of its own, so that training's does not wait for it."""
    num_prompts: int | None
    """How many there are; None where they are made without end."""
    max_tokens: int = MAX_PROMPT_TOKENS
    """The longest prompt that a completion fits behind."""
