"""Which checkpoint a run goes on from, and why not from a newer one.

The newest that is whole, and from which the ledger leads to where the run stood. If there
is none, the run is not resumed: a start from the beginning would make other versions under
numbers that nodes know already.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
import trio

from echo2swarm.system.errors import StoreError
from learner.config.changes import Change, check_resumable
from learner.ledger.ledger import Ledger
from learner.ledger.resume import LeftOver, Reach
from learner.run.checkpoint_store import Checkpoint, damage_of
from learner.run.run_dir import RunDir
from learner.training.replay import replay
from learner.training.trainer_client import ProcessTrainer

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A checkpoint that is not gone on from."""

    checkpoint: Checkpoint
    why: str


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to go on from."""

    checkpoint: Checkpoint | None
    """None for the weights that the run began with."""
    passed_over: tuple[PassedOver, ...]
    """Newer ones, newest first."""


class NoWayBackError(StoreError):
    """No checkpoint can be gone on from."""


def choose(
    checkpoints: Sequence[Checkpoint],
    reach: Reach,
    *,
    damage_of: Callable[[Checkpoint], str | None],
) -> ResumePoint:
    """Return the newest checkpoint to go on from.

    Args:
        checkpoints: those of the run.
        reach: what its ledger can lead from.
        damage_of: says what is wrong with the files of one; only asked where it matters.

    Raises:
        NoWayBackError: there is none; the message says why for each.
    """
    passed: list[PassedOver] = []
    for checkpoint in sorted(checkpoints, key=lambda c: c.step, reverse=True):
        why = reach.fault_of(checkpoint.step) or damage_of(checkpoint)
        if why is None:
            return ResumePoint(checkpoint, tuple(passed))
        passed.append(PassedOver(checkpoint, why))
    # The weights that a new run begins with can always be had again; those of a fork were a
    # checkpoint.
    why = reach.fault_of(0) if reach.first_step == 0 else "it was forked from a checkpoint"
    if why is None:
        return ResumePoint(None, tuple(passed))
    reasons = "; ".join(f"step {p.checkpoint.step}: {p.why}" for p in passed) or "there is none"
    raise NoWayBackError(
        f"no checkpoint of the {reach.step} updates that this run has done can be gone on from "
        f"({reasons}; from the beginning: {why})"
    )


async def choose_checkpoint(run_dir: RunDir, ledger: Ledger) -> Checkpoint | None:
    """Return the checkpoint to go on from, and set aside those that are of no use.

    Returns:
        None if it is the weights that the run began with.

    Raises:
        NoWayBackError: there is none.
    """
    reach = await ledger.reach()
    checkpoints = await trio.to_thread.run_sync(run_dir.checkpoints.all)
    try:
        choice = await trio.to_thread.run_sync(
            lambda: choose(checkpoints, reach, damage_of=damage_of)
        )
    except NoWayBackError as exc:
        raise NoWayBackError(
            f"{exc}. Restore one from a backup; or begin a new run with what there is: "
            f"echo2-learner fork {shlex.quote(str(run_dir.folder))} --run-dir NEW"
        ) from None
    for passed in choice.passed_over:
        aside = await trio.to_thread.run_sync(run_dir.checkpoints.set_aside, passed.checkpoint)
        log.warning(
            "checkpoint.passed_over",
            step=passed.checkpoint.step,
            why=passed.why,
            kept_as=str(aside),
        )
    return choice.checkpoint


def tell_if_done(step: int, *, num_steps: int) -> None:
    """Warn that a run is resumed which has no updates left to do."""
    if step >= num_steps:
        log.warning(
            "run.has_all_steps",
            step=step,
            num_steps=num_steps,
            next="telling nodes that it is over; to train on: --set run.num_steps=N",
        )


async def check_changes(
    run_dir: RunDir, ledger: Ledger, checkpoint: Checkpoint | None, changes: tuple[Change, ...]
) -> None:
    """Do nothing if the configuration may have changed so, where the run goes on from.

    Raises:
        ConfigError: it may not.
    """
    reach = await ledger.reach()
    step = checkpoint.step if checkpoint else reach.first_step
    check_resumable(changes, num_updates_to_replay=reach.step - step, folder=str(run_dir.folder))
    for change in changes:
        log.info("config.changed", key=change.key, before=change.before, now=change.now)


async def take_up(
    run_dir: RunDir,
    ledger: Ledger,
    trainer: ProcessTrainer,
    *,
    max_staleness: int,
    are_same_prompts: bool = True,
) -> LeftOver:
    """Bring trainer, ledger and weights to where the run stood.

    Prompts that lack results are given up where the task makes others of the same numbers now.
    """
    checkpoint_step = trainer.started.step
    left_over = await ledger.resume(
        checkpoint_step,
        max_staleness=max_staleness,
        now_unix_s=time.time(),
        are_same_prompts=are_same_prompts,
    )
    step = checkpoint_step + len(left_over.updates)
    log.info(
        "run.resumed",
        checkpoint=checkpoint_step,
        step=step,
        num_updates_to_replay=len(left_over.updates),
        num_groups_kept=len(left_over.groups),
        num_rollouts_kept=sum(len(group.rollouts) for group in left_over.groups),
        num_rollouts_undone=left_over.num_rollouts_undone,
    )
    await replay(trainer, left_over.updates)
    await trio.to_thread.run_sync(run_dir.forget_versions_after, step)
    return left_over
