"""What the training loop needs from others: the trainer, its checkpoints, the publisher."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.trainer.messages import TrainGroup, Updated
from protocols.ids import PolicyVersion


class Trainer(Protocol):
    """Owns the model. A call that fails raises :class:`~echo2swarm.system.errors.ChildError`."""

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
