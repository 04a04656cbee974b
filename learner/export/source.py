"""Which model a path on the command line means: of a run, of a checkpoint, or a plain folder."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from echo2swarm.system.errors import StoreError, UsageError
from learner.config import LearnerConfig
from learner.config import file as config_file
from learner.run.checkpoint_store import POSITION, Checkpoint, damage_of
from learner.run.run_dir import RunDir, read_run_dir

BASE: Final = "base"
_MODEL_CONFIG: Final = "config.json"
_MAX_ATTEMPTS: Final = 3
"""To hold the newest checkpoint of a run that deletes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """What is known of a run without starting anything."""

    run_dir: RunDir
    config: LearnerConfig
    config_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """A checkpoint and its run."""

    run: RunSource
    checkpoint: Checkpoint

    @property
    def label(self) -> str:
        """A name for tables."""
        return f"{self.run.run_dir.folder.name} step {self.checkpoint.step}"


def read_run_source(folder: Path) -> RunSource:
    """Return the run in ``folder``.

    Raises:
        UsageError: there is none.
        StoreError: its files are damaged.
    """
    run_dir = read_run_dir(folder)
    try:
        data = run_dir.config.read_bytes()
    except OSError as exc:
        raise StoreError(f"{run_dir.config}: can't be read: {exc.strerror}") from exc
    return RunSource(
        run_dir=run_dir,
        # Not with this environment's settings: as the run was resolved.
        config=config_file.load_config(run_dir.config, (), environment={}, of_run=run_dir.config),
        config_sha256=hashlib.sha256(data).hexdigest(),
    )


def find_checkpoint(path: Path, *, step: int | None) -> CheckpointSource:
    """Return the checkpoint that ``path`` names: its folder, or its run's; not looked into yet.

    Args:
        path: a run directory, of which the newest is taken, or a checkpoint's folder.
        step: the step to take from a run directory.

    Raises:
        UsageError: there is none.
        StoreError: it is damaged.
    """
    path = path.absolute()
    if (path / POSITION).is_file():
        if step is not None:
            raise UsageError(f"--step is for a run directory; {path} is a checkpoint")
        # runs/NAME/checkpoints/step-00000010
        run = read_run_source(path.parent.parent)
        checkpoints = [c for c in run.run_dir.checkpoints.all() if c.folder == path]
    elif (path / RunDir.RUN).is_file():
        run = read_run_source(path)
        checkpoints = run.run_dir.checkpoints.all()
    elif not path.exists():
        raise UsageError(f"{path}: no such folder")
    else:
        raise UsageError(f"{path}: neither a run directory nor a checkpoint of one")
    if not checkpoints:
        raise UsageError(f"{path}: the run has no checkpoint yet")
    wanted = [c for c in checkpoints if step is None or c.step == step]
    if not wanted:
        steps = ", ".join(str(c.step) for c in checkpoints)
        raise UsageError(f"{path}: no checkpoint of step {step}; there are: {steps}")
    return CheckpointSource(run=run, checkpoint=wanted[-1])


@contextmanager
def hold_checkpoint(path: Path, *, step: int | None, elsewhere: Path) -> Iterator[CheckpointSource]:
    """Find a checkpoint, see that it is whole, and keep it though its run goes on and deletes it.

    Args:
        path: see :func:`find_checkpoint`.
        step: see there.
        elsewhere: where to keep it if the run directory can't be written; need not exist.

    Raises:
        UsageError: there is none.
        StoreError: it is damaged, was deleted meanwhile, or can't be kept.
    """
    with ExitStack() as stack:
        trained = _hold(path, step, elsewhere, stack)
        fault = damage_of(trained.checkpoint)
        if fault is not None:
            raise _damaged(path, trained.checkpoint.step, fault)
        yield trained


def _hold(path: Path, step: int | None, elsewhere: Path, stack: ExitStack) -> CheckpointSource:
    attempts_left = _MAX_ATTEMPTS
    while True:
        attempts_left -= 1
        trained = find_checkpoint(path, step=step)
        checkpoint, store = trained.checkpoint, trained.run.run_dir.checkpoints
        holding = store.hold(checkpoint, elsewhere=_existing(elsewhere.absolute()))
        try:
            return replace(trained, checkpoint=stack.enter_context(holding))
        except FileNotFoundError as exc:
            if checkpoint.folder.exists():
                raise _damaged(path, checkpoint.step, damage_of(checkpoint) or str(exc)) from None
            is_named = step is not None or path.absolute() == checkpoint.folder
            if is_named or not attempts_left:
                raise StoreError(
                    f"{checkpoint.folder}: the run has deleted it meanwhile; take a newer one, or "
                    "have the run keep more (checkpoint.keep)"
                ) from None
        except OSError as exc:
            raise StoreError(f"can't keep {checkpoint.folder}: {exc.strerror or exc}") from exc


def _damaged(path: Path, step: int, fault: str) -> StoreError:
    return StoreError(f"{path}: the checkpoint of step {step} is damaged: {fault}; take another")


def _existing(folder: Path) -> Path:
    """Return the nearest folder above that exists."""
    return next(parent for parent in (folder, *folder.parents) if parent.is_dir())


def is_model_folder(path: Path) -> bool:
    """Whether ``path`` is a plain folder in Hugging Face format."""
    return (path / _MODEL_CONFIG).is_file()
