"""The learner's side of the trainer: a child process that owns model and optimizer.

It is not started anew by itself, as the scorer is: its state would be that of the last
checkpoint, and everything else has to go back to it too.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog
import trio

from echo2swarm.processes.parent import Child, open_child
from echo2swarm.processes.wire import CallProgress
from echo2swarm.system.errors import ChildError, ConfigError
from learner.trainer.messages import (
    COPIED,
    SaveCheckpoint,
    SavedCheckpoint,
    Start,
    Started,
    TrainGroup,
    Update,
    Updated,
    WriteWeights,
    WroteWeights,
)

START_S: Final = 1800.0
"""Loading a large model from a cold disk takes its time."""
_NAME: Final = "trainer"

T = TypeVar("T")
log = structlog.get_logger()


class TrainerLostError(ChildError):
    """The trainer died: what it had learned since the last checkpoint is gone with it."""


class ProcessTrainer:
    """The running trainer."""

    def __init__(self, child: Child, started: Started) -> None:
        self.started = started
        self._child = child

    async def update(self, step: int, groups: Sequence[TrainGroup]) -> Updated:
        """Make one optimizer step from version ``step``."""
        return await self._call(Update(step, tuple(groups)), Updated)

    async def write_weights(self, folder: Path) -> None:
        """Write the present weights as safetensors into a new folder."""
        await self._call(WriteWeights(str(folder)), WroteWeights)

    async def save_checkpoint(
        self, folder: Path, *, in_background: bool, on_copied: Callable[[], None]
    ) -> None:
        """Write all state, into a new folder; see :class:`learner.training.ports.Trainer`."""

        def on_progress(progress: CallProgress) -> None:
            if progress.what == COPIED:
                on_copied()

        message = SaveCheckpoint(str(folder), in_background=in_background)
        await self._call(message, SavedCheckpoint, on_progress)

    async def _call(
        self,
        message: msgspec.Struct,
        kind: type[T],
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> T:
        try:
            return await self._child.call(message, kind, on_progress=on_progress)
        except ChildError as exc:
            if exc.error:
                raise
            raise TrainerLostError(str(exc)) from exc


class StartingTrainer:
    """A trainer that is being started, while others are, too: its libraries take their time."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._trainer: ProcessTrainer | None = None
        self._is_ready = trio.Event()

    async def ready(self) -> ProcessTrainer:
        """Return the trainer as soon as it can be called."""
        await self._is_ready.wait()
        assert self._trainer is not None  # noqa: S101 - set before the event
        return self._trainer

    async def start(self, start: Start) -> None:
        """Have it load model and checkpoint."""
        try:
            started = await self._child.call(start, Started, timeout_s=START_S)
        except ChildError as exc:
            if exc.error == ConfigError.__name__:
                raise ConfigError(str(exc).removeprefix(f"{_NAME}: {exc.error}: ")) from exc
            if exc.error:
                raise
            raise TrainerLostError(f"while it was starting: {exc}") from exc
        log.info(
            "trainer.started",
            step=started.step,
            num_parameters=started.num_parameters,
            rss_bytes=started.rss_bytes,
        )
        self._trainer = ProcessTrainer(self._child, started)
        self._is_ready.set()


@asynccontextmanager
async def open_trainer(start: Start, *, log_path: Path) -> AsyncIterator[StartingTrainer]:
    """Run the trainer process for the length of the context, which begins before it is ready.

    Raises:
        ConfigError: what the configuration asks of it is not possible.
        TrainerLostError: it died, or hung, before it was ready.
        ChildError: it could not be started.
    """
    async with (
        open_child("learner.trainer.worker", name=_NAME, log_path=log_path) as child,
        trio.open_nursery() as nursery,
    ):
        starting = StartingTrainer(child)
        nursery.start_soon(starting.start, start)
        yield starting
        nursery.cancel_scope.cancel()
