"""Composition root of ``echo2-learner serve``: opens everything, in this order, and closes it.

    run directory (held by whoever called), its event log
      model folder (prepared in a process of its own)
      identity (locked: one process per run)
        ledger, which says from which checkpoint to go on
          trainer process: its libraries take longest to load, and meanwhile ...
            network, scorer process, weights library
            the learner at work, until done or interrupted

If the trainer dies, all of it is closed and opened again from the last checkpoint, as
``--resume`` would: what was learned since then is lost either way. It listens where it did, even
at a port that the system had chosen: its ticket is still good.
"""

import random
import shlex
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
import trio

from echo2swarm.network.addresses import with_ports
from echo2swarm.network.base import Network
from echo2swarm.network.discovery import Discovery
from echo2swarm.system.files import write_atomically
from echo2swarm.system.identity import Identity, hold_identity
from echo2swarm.system.logging import events_to
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import PolicyRules
from learner.config import LearnerConfig
from learner.config.changes import Change
from learner.config.file import resolved
from learner.learner import Learner
from learner.ledger.ledger import Ledger, open_ledger
from learner.ledger.resume import LeftOver
from learner.membership.advert_addresses import looked_up
from learner.membership.announce import relay_manifests, sealed_advert, write_ticket
from learner.opening import (
    TaskOfRun,
    Weights,
    open_swarm_network,
    open_task_of_run,
    open_weights,
    start_of_trainer,
)
from learner.parts import LearnerParts
from learner.run.checkpoint_store import Checkpoint
from learner.run.model_folder import prepare_model
from learner.run.restarts import Restarts
from learner.run.run_dir import RunDir
from learner.status.metrics import open_metrics
from learner.status.tensorboard import require_tensorboard
from learner.training.checkpoints import Checkpoints
from learner.training.first_error import one_error_at_a_time
from learner.training.publisher import SwarmPublisher
from learner.training.resume import check_changes, choose_checkpoint, take_up, tell_if_done
from learner.training.trainer_client import ProcessTrainer, TrainerLostError, open_trainer
from learner.training.wait_for_disk import until_there_is_room

log = structlog.get_logger()

SayTicket = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What ``serve_run`` was asked to do."""

    config: LearnerConfig
    run_dir: RunDir
    resume: bool
    say_ticket: SayTicket
    changes: tuple[Change, ...] = ()
    """What is configured otherwise than before."""
    accept_changed_inputs: bool = False
    """Go on though data, verifier or model are not those that the run began with."""


async def serve_run(serving: Serving) -> None:
    """Run the learner until all steps are done.

    Raises:
        KeyboardInterrupt: it was interrupted; after the first Ctrl-C, with a checkpoint.
        SwarmError: something of this machine does not work; the message says what.
    """
    run_dir = serving.run_dir
    with events_to(run_dir.events):
        log.info(
            "run.started", run_id=run_dir.run_id, folder=str(run_dir.folder), **_origin(run_dir)
        )
        model_dir = await prepare_model(serving.config.model.path)
        with hold_identity(run_dir.identity) as identity:
            await _serve_until_done(serving, model_dir, identity)


async def _serve_until_done(serving: Serving, model_dir: Path, identity: Identity) -> None:
    resume, restarts, reached = serving.resume, Restarts(), _Reached()
    say_ticket = serving.say_ticket

    def say_once(line: str) -> None:
        nonlocal say_ticket
        say_ticket(line)
        say_ticket = _say_nothing

    serving = replace(serving, say_ticket=say_once)
    while True:
        try:
            with one_error_at_a_time():
                await _serve_once(serving, model_dir, identity, resume=resume, reached=reached)
        except TrainerLostError as exc:
            if reached.is_stopping:
                log.error(
                    "trainer.lost",
                    error=str(exc),
                    step=reached.step,
                    next="ending without a checkpoint, as it was to end; "
                    "--resume makes the updates since the last one again",
                )
                raise KeyboardInterrupt from exc
            if not restarts.may_restart(reached.step):
                raise
            resume = True
            serving = replace(serving, changes=(), accept_changed_inputs=False)
            log.error(
                "trainer.lost",
                error=str(exc),
                step=reached.step,
                next="starting it again from the newest checkpoint",
                in_s=restarts.wait_s,
            )
            await trio.sleep(restarts.wait_s)
            await until_there_is_room(serving.run_dir.folder)
        else:
            return


@dataclass(slots=True)
class _Reached:
    """How far the run has come."""

    step: int = 0
    is_stopping: bool = False
    """Whether it was told to end before its last step."""
    listen: tuple[str, ...] = ()
    """Where it listened: whoever has its ticket looks for it there."""


async def _serve_once(
    serving: Serving, model_dir: Path, identity: Identity, *, resume: bool, reached: _Reached
) -> None:
    config, run_dir = serving.config, serving.run_dir
    if config.tracking.tensorboard:
        require_tensorboard()
    await trio.to_thread.run_sync(run_dir.clean)
    async with AsyncExitStack() as stack:
        stack.callback(run_dir.clean)
        ledger = await stack.enter_async_context(
            open_ledger(
                run_dir.ledger,
                run_id=run_dir.run_id,
                max_staleness=config.rollouts.max_staleness,
            )
        )
        checkpoint = await _checkpoint_to_resume(serving, ledger) if resume else None
        write_atomically(run_dir.config, resolved(config).encode())
        starting = await stack.enter_async_context(
            open_trainer(
                start_of_trainer(config, run_dir, model_dir, checkpoint),
                log_path=run_dir.logs / "trainer.log",
            )
        )
        listen = reached.listen or config.swarm.listen
        network = await stack.enter_async_context(open_swarm_network(config, identity, listen))
        if not config.swarm.advertise:
            reached.listen = with_ports(listen, network.addresses())
        task = await stack.enter_async_context(
            open_task_of_run(
                config,
                run_dir,
                model_dir,
                # A trainer that died before anything was recorded began nothing.
                is_resumed=resume and (serving.resume or run_dir.inputs.exists()),
                is_first_start=not resume,
                accept_changed_inputs=serving.accept_changed_inputs,
            )
        )
        trainer = await starting.ready()
        left_over = LeftOver()
        if resume:
            left_over = await take_up(
                run_dir,
                ledger,
                trainer,
                max_staleness=config.rollouts.max_staleness,
                are_same_prompts=task.are_same_prompts,
            )
        weights = await stack.enter_async_context(open_weights(config, run_dir, network, identity))
        run = _Opened(
            network,
            ledger,
            checkpoint,
            task,
            trainer,
            left_over,
            weights,
            model_dir=model_dir,
            run_at=await looked_up(network.addresses()),
        )
        learner = _make_learner(serving, run, identity, stack)
        try:
            await _work(serving, learner, weights.announcer, network, identity)
        finally:
            reached.step = learner.progress.step
            reached.is_stopping = learner.is_stopping


async def _checkpoint_to_resume(serving: Serving, ledger: Ledger) -> Checkpoint | None:
    """Return from where to go on, if the run can, and is not done."""
    checkpoint = await choose_checkpoint(serving.run_dir, ledger)
    await check_changes(serving.run_dir, ledger, checkpoint, serving.changes)
    tell_if_done((await ledger.reach()).step, num_steps=serving.config.run.num_steps)
    return checkpoint


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is open when the learner is made."""

    network: Network
    ledger: Ledger
    checkpoint: Checkpoint | None
    task: TaskOfRun
    trainer: ProcessTrainer
    left_over: LeftOver
    weights: Weights
    model_dir: Path
    run_at: tuple[str, ...]


def _make_learner(
    serving: Serving, opened: _Opened, identity: Identity, stack: AsyncExitStack
) -> Learner:
    """Make the learner of what is open; its metrics are closed with ``stack``."""
    config, run_dir = serving.config, serving.run_dir
    trainer, task, checkpoint = opened.trainer, opened.task, opened.checkpoint
    step = trainer.started.step + len(opened.left_over.updates)
    metrics = stack.enter_context(open_metrics(run_dir, config.tracking, first_step=step + 1))
    return Learner(
        LearnerParts(
            config=config,
            run_id=run_dir.run_id,
            network=opened.network,
            traffic=opened.weights.traffic,
            links=opened.weights.links,
            trainer=trainer,
            scorer=task.scorer,
            publisher=SwarmPublisher(
                opened.weights.library,
                opened.weights.announcer,
                assets=opened.model_dir,
                rules=PolicyRules(
                    sampling=task.sampling,
                    max_staleness=config.rollouts.max_staleness,
                    publish_every=config.rollouts.publish_every,
                ),
                key=identity.key,
            ),
            ledger=opened.ledger,
            metrics=metrics,
            checkpoints=Checkpoints(
                run_dir.checkpoints,
                trainer,
                opened.ledger,
                table=config.checkpoint,
                first_step=run_dir.first_step,
                saved_step=checkpoint.step if checkpoint else None,
            ),
            sampling=task.sampling,
            vocab_size=trainer.started.vocab_size,
            step=step,
            left_over=opened.left_over,
            snapshots=run_dir.snapshots,
            status_file=run_dir.status,
            held_out=task.held_out,
            first_step=run_dir.first_step,
            max_prompt_tokens=task.max_prompt_tokens,
            run_at=opened.run_at,
        )
    )


async def _work(
    serving: Serving,
    learner: Learner,
    announcer: ManifestAnnouncer,
    network: Network,
    identity: Identity,
) -> None:
    """Let the learner run beside what keeps it findable, until done or interrupted."""
    run_id = serving.run_dir.run_id
    discovery = Discovery(
        network,
        run=run_id,
        learner=identity.peer,
        boot=serving.config.swarm.bootstrap,
        sealed_advert=partial(sealed_advert, network, identity, run_id=run_id),
        rng=random.Random(),  # noqa: S311 - jitter
        unix_now_s=time.time,
        book_path=serving.run_dir.folder / "peers.json",
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_signals, learner)
        nursery.start_soon(announcer.run)
        nursery.start_soon(partial(relay_manifests, network, identity, run_id=run_id))
        nursery.start_soon(discovery.run)

        is_done = await learner.run(on_started=lambda: _tell_ticket(serving, network, identity))
        nursery.cancel_scope.cancel()
    if not is_done:
        folder = shlex.quote(str(serving.run_dir.folder))
        log.info(
            "run.stopped",
            step=learner.progress.step,
            next=f"echo2-learner serve --resume --run-dir {folder} goes on from here",
        )
        raise KeyboardInterrupt


def _tell_ticket(serving: Serving, network: Network, identity: Identity) -> None:
    line = write_ticket(
        network,
        identity,
        run_id=serving.run_dir.run_id,
        valid_h=serving.config.swarm.ticket_valid_h,
    )
    write_atomically(serving.run_dir.ticket, f"{line}\n".encode())
    serving.say_ticket(line)


def _origin(run_dir: RunDir) -> dict[str, object]:
    origin = run_dir.forked_from
    return {"forked_from": f"{origin.run_id} at step {origin.step}"} if origin else {}


def _say_nothing(_line: str) -> None:
    """Do not tell the ticket again when the trainer was restarted."""


async def _watch_signals(learner: Learner) -> None:
    """First Ctrl-C: finish the update, save, stop. Second: stop at once."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        num_received = 0
        async for _ in signals:
            num_received += 1
            if num_received > 1:
                raise KeyboardInterrupt
            learner.stop()
