"""Which model a path on the command line means: of a run, of a checkpoint, or a plain folder."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from echo2swarm.errors import StoreError, UsageError
from learner.checkpoint_store import POSITION, Checkpoint, fault_of
from learner.config import LearnerConfig
from learner.config import file as config_file
from learner.run_dir import RunDir, read_run_dir

BASE: Final = "base"
_MODEL_CONFIG: Final = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is known of a run without starting anything."""

    run_dir: RunDir
    config: LearnerConfig
    config_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A checkpoint and its run."""

    run: Run
    checkpoint: Checkpoint

    @property
    def label(self) -> str:
        """A name for tables."""
        return f"{self.run.run_dir.folder.name} step {self.checkpoint.step}"


def read_run(folder: Path) -> Run:
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
    return Run(
        run_dir=run_dir,
        # Not with this environment's settings: as the run was resolved.
        config=config_file.load(run_dir.config, (), environment={}),
        config_sha256=hashlib.sha256(data).hexdigest(),
    )


def find_checkpoint(path: Path, *, step: int | None) -> Trained:
    """Return the checkpoint that ``path`` names: its folder, or its run's.

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
        run = read_run(path.parent.parent)
        checkpoints = [c for c in run.run_dir.checkpoints.all() if c.folder == path]
    elif (path / RunDir.RUN).is_file():
        run = read_run(path)
        checkpoints = run.run_dir.checkpoints.all()
    else:
        raise UsageError(f"{path}: neither a run directory nor a checkpoint of one")
    if not checkpoints:
        raise UsageError(f"{path}: the run has no checkpoint yet")
    wanted = [c for c in checkpoints if step is None or c.step == step]
    if not wanted:
        steps = ", ".join(str(c.step) for c in checkpoints)
        raise UsageError(f"{path}: no checkpoint of step {step}; there are: {steps}")
    checkpoint = wanted[-1]
    fault = fault_of(checkpoint)
    if fault is not None:
        raise StoreError(f"{checkpoint.folder} is damaged: {fault}; take another --step")
    return Trained(run=run, checkpoint=checkpoint)


def is_model_folder(path: Path) -> bool:
    """Whether ``path`` is a plain folder in Hugging Face format."""
    return (path / _MODEL_CONFIG).is_file()
