"""The trainer's process: ``python -m learner.trainer.worker``, started by the learner.

Whatever is slow to import is imported at the first call, once the number of
threads is known: it can't be changed afterwards.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from echo2swarm.processes.worker import Later, serve_parent
from learner.config import TrainerConfig
from learner.trainer.environment import prepare, set_threads, threads_per_rank
from learner.trainer.messages import (
    COPIED,
    SaveCheckpoint,
    SavedCheckpoint,
    Start,
    Started,
    TrainerCall,
    TrainGroup,
    Update,
    Updated,
    WriteWeights,
    WroteWeights,
)

OnProgress = Callable[[str, float, float], None]


class TrainerPort(Protocol):
    """What the calls need."""

    @property
    def step(self) -> int:
        """Updates done."""

    def started(self) -> Started:
        """Describe the trainer."""

    def update(self, step: int, groups: Sequence[TrainGroup], on_progress: OnProgress) -> Updated:
        """Make one optimizer step."""

    def write_weights(self, folder: Path) -> list[str]:
        """Write the present weights into the new ``folder``; return the files' names in order."""

    def copy_state(self) -> Callable[[Path], None]:
        """Copy all state, and return what writes the copy into a new folder, in any thread."""


class TrainerWorker:
    """Answers the learner's calls."""

    def __init__(self) -> None:
        self._trainer: TrainerPort | None = None

    def handle(self, call: TrainerCall, on_progress: OnProgress) -> msgspec.Struct | Later:
        """Compute the answer to ``call``, or say how it is found beside other calls."""
        if isinstance(call, Start):
            if self._trainer is not None:
                raise ValueError("the trainer has been started before")
            on_progress("loading", 0, 1)
            self._trainer = load_trainer(call)
            return self._trainer.started()
        trainer = self._trainer
        if trainer is None:
            raise ValueError(f"{type(call).__name__} before Start")
        match call:
            case Update():
                return trainer.update(call.step, call.groups, on_progress)
            case WriteWeights():
                files = trainer.write_weights(Path(call.folder))
                return WroteWeights(files=tuple(files), step=trainer.step)
            case SaveCheckpoint():
                return _save(call, trainer, on_progress)


def _save(
    call: SaveCheckpoint, trainer: TrainerPort, on_progress: OnProgress
) -> msgspec.Struct | Later:
    write, saved = trainer.copy_state(), SavedCheckpoint(step=trainer.step)

    def finish() -> msgspec.Struct:
        write(Path(call.folder))
        return saved

    if not call.in_background:
        return finish()
    on_progress(COPIED, 1, 1)
    return Later(finish)


def load_trainer(start: Start) -> TrainerPort:
    """Load the trainer that ``start`` describes."""
    table = msgspec.convert(start.trainer, TrainerConfig)
    set_threads(threads_per_rank(table))
    if table.kind == "sleep":
        from learner.trainer.sleep_trainer import SleepTrainer  # noqa: PLC0415 - see above

        return SleepTrainer(start, table)
    if table.num_processes > 1:
        from learner.trainer.multi_rank_trainer import MultiRankTrainer  # noqa: PLC0415

        return MultiRankTrainer(start, table)
    from learner.trainer.trainer import PolicyTrainer  # noqa: PLC0415

    return PolicyTrainer(start, table)


def main() -> None:
    """Serve calls until the parent is gone."""
    prepare()
    serve_parent(TrainerCall, TrainerWorker().handle)  # type: ignore[arg-type]  # a union is no type[R]


if __name__ == "__main__":
    main()
