"""What the learner's loops need from others: the trainer, the scorer, the broadcast."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.scoring.messages import CompletionToScore, Prompts, Reward
from learner.trainer.messages import TrainGroup, Updated
from protocols.ids import PolicyVersion
from protocols.leases import MAX_PROMPT_TOKENS


class Trainer(Protocol):
    """Owns the model. Every call raises :class:`~echo2swarm.system.errors.ChildError` if it fails."""

    async def update(self, step: int, groups: Sequence[TrainGroup]) -> Updated:
        """Make one optimizer step from version ``step``."""
        ...

    async def write_weights(self, folder: Path) -> None:
        """Write the present weights as safetensors into a new folder."""
        ...

    async def save_checkpoint(
        self, folder: Path, *, in_background: bool, on_copied: Callable[[], None]
    ) -> None:
        """Write all state, as it is now, into a new folder.

        In the background, other calls are answered while it is written; ``on_copied`` is called
        as soon as they are.
        """
        ...


class CheckpointSaver(Protocol):
    """Keeps checkpoints."""

    def is_due(self, step: int) -> bool:
        """Whether the state after ``step`` updates is to be saved."""
        ...

    async def save(self, step: int) -> None:
        """Have the state saved, which is that after ``step`` updates; training may then go on."""
        ...

    async def save_last(self, step: int) -> None:
        """Save the state after ``step`` updates; returns when it is on disk."""
        ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version that nodes can fetch."""

    version: PolicyVersion
    weights_sha256: bytes
    size_bytes: int
    update_bytes: int | None = None
    """What a node fetches that holds the version before; None if that is not known."""


class Publisher(Protocol):
    """Makes weights a version that nodes can fetch, and tells them."""

    async def prepare(self, version: PolicyVersion, snapshot: Path) -> Published:
        """Hash and sign the safetensors files in ``snapshot``, which may then be deleted."""
        ...

    async def announce(self, version: PolicyVersion) -> None:
        """Tell everybody of the version prepared last; waits for nobody to fetch it."""
        ...
