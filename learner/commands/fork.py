"""A new run from a checkpoint of another: another id, another identity, a ledger of its own.

What the new run knows of the old one is in ``run.json``: which run, which step. The weights
keep their version number, so the new run goes on counting from there. Prompts that the old
run trained on before the checkpoint are not drawn again.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import trio

from echo2swarm.system.errors import ConfigError, StoreError, UsageError
from echo2swarm.system.files import write_atomically
from learner.config import LearnerConfig
from learner.config.file import load_config, resolved
from learner.ledger.ledger import open_ledger
from learner.ledger.meta import Beginning
from learner.ledger.resume import beginning_at
from learner.run.checkpoint_store import Checkpoint, damage_of
from learner.run.inputs import (
    Recorded,
    changes_on_disk,
    inherited,
    read_inputs,
    write_inputs,
)
from learner.run.run_dir import Origin, RunDir, hold, make_run_dir, read_run_dir
from learner.tasks.inputs import changed_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOptions:
    """What the user asked for."""

    source: Path
    step: int | None
    """None for the newest whole one."""
    run_dir: Path
    name: str | None
    overrides: tuple[str, ...]
    fresh_optimizer: bool
    accept_changed_inputs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """What came of it."""

    run_dir: RunDir
    origin: Origin
    passed_over: tuple[tuple[int, str], ...]
    """Newer checkpoints and what is wrong with them."""


def fork_run(options: ForkOptions) -> Forked:
    """Make the run directory of a new run that begins with a checkpoint of another.

    Raises:
        UsageError: there is no such run or checkpoint, or the directory is in use.
        ConfigError: the configuration does not fit.
        StoreError: no checkpoint is whole, or the disk can't be written.
    """
    source = read_run_dir(options.source.absolute())
    checkpoint, passed_over = pick(source.checkpoints.all(), options.step, source.folder)
    config = _config(source, options)
    if config.run.num_steps <= checkpoint.step:
        raise ConfigError(
            f"run.num_steps: expected more than the {checkpoint.step} updates that the checkpoint "
            f"has behind it, got {config.run.num_steps}; add --set run.num_steps=..."
        )
    inputs = _inputs(source, config, accept=options.accept_changed_inputs)
    origin = Origin(
        run_id=source.run_id,
        folder=str(source.folder),
        step=checkpoint.step,
        forked_unix_s=time.time(),
        has_fresh_optimizer=options.fresh_optimizer,
    )
    folder = options.run_dir.absolute()
    with hold(folder):
        run_dir = make_run_dir(folder, name=config.run.name, forked_from=origin)
        try:
            _copy(checkpoint, run_dir)
            write_atomically(run_dir.config, resolved(config).encode())
            write_inputs(run_dir.inputs, inputs)
            # Last: with a ledger it is a run.
            trio.run(_begin_ledger, run_dir, config, _beginning(source, checkpoint.step))
        except OSError as exc:
            raise StoreError(f"can't write {folder}: {exc.strerror or exc}") from exc
    return Forked(run_dir=run_dir, origin=origin, passed_over=passed_over)


def pick(
    checkpoints: Sequence[Checkpoint], step: int | None, folder: Path
) -> tuple[Checkpoint, tuple[tuple[int, str], ...]]:
    """Return the checkpoint of ``step``, or the newest whole one, and why not newer ones.

    Raises:
        UsageError: there is none of that step.
        StoreError: it, or each of them, is damaged.
    """
    steps = ", ".join(str(c.step) for c in checkpoints) or "none"
    if step is not None and step not in {c.step for c in checkpoints}:
        raise UsageError(f"{folder} has no checkpoint of step {step}; there are: {steps}")
    passed: list[tuple[int, str]] = []
    for checkpoint in sorted(checkpoints, key=lambda c: c.step, reverse=True):
        if step not in (None, checkpoint.step):
            continue
        fault = damage_of(checkpoint)
        if fault is None:
            return checkpoint, tuple(passed)
        passed.append((checkpoint.step, fault))
    if not passed:
        raise UsageError(f"{folder} has no checkpoint yet; see checkpoint.every_steps")
    faults = "; ".join(f"step {step}: {fault}" for step, fault in passed)
    raise StoreError(f"no checkpoint of {folder} can be used ({faults}); there are: {steps}")


def _config(source: RunDir, options: ForkOptions) -> LearnerConfig:
    overrides = list(options.overrides)
    if options.name is not None:
        overrides.append(f"run.name={options.name}")
    if not source.config.is_file():
        raise UsageError(f"{source.config} is missing; restore it")
    return load_config(source.config, overrides, environment={}, of_run=source.config)


def _inputs(source: RunDir, config: LearnerConfig, *, accept: bool) -> Recorded:
    """Return what the new run depends on as the old one does.

    Raises:
        ConfigError: that has changed since the old run began.
    """
    recorded = read_inputs(source.inputs) or Recorded()
    before = load_config(source.config, environment={}, of_run=source.config)
    kept = inherited(
        recorded, same_task=config.task == before.task, same_model=config.model == before.model
    )
    if not (found := changes_on_disk(kept.inputs)):
        return kept
    if not accept:
        raise changed_inputs(found)
    return inherited(recorded, same_task=False, same_model=config.model == before.model)


def _copy(checkpoint: Checkpoint, run_dir: RunDir) -> None:
    """Take over the files: linked where the disk allows, for nobody ever writes to them again."""
    target = run_dir.checkpoints.begin(checkpoint.step)
    for name in checkpoint.position.files:
        path = target.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(checkpoint.folder / name, path)
        except FileNotFoundError:
            raise StoreError(
                f"{checkpoint.folder}: the run has deleted it meanwhile; fork again"
            ) from None
        except OSError:
            shutil.copyfile(checkpoint.folder / name, path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
    run_dir.checkpoints.complete(checkpoint.step)


def _beginning(source: RunDir, step: int) -> Beginning:
    if not source.ledger.is_file():
        return Beginning(step=step)  # lost: prompts begin at the first again
    try:
        with closing(sqlite3.connect(f"{source.ledger.as_uri()}?mode=ro", uri=True)) as db:
            return beginning_at(db, step)
    except sqlite3.Error as exc:
        raise StoreError(f"can't read the ledger {source.ledger}: {exc}") from exc


async def _begin_ledger(run_dir: RunDir, config: LearnerConfig, beginning: Beginning) -> None:
    async with open_ledger(
        run_dir.ledger,
        run_id=run_dir.run_id,
        max_staleness=config.rollouts.max_staleness,
        beginning=beginning,
    ):
        pass
