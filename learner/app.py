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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import structlog
import trio

from echo2swarm.network.addresses import with_ports
from echo2swarm.network.base import Network
from echo2swarm.network.discovery import Discovery
from echo2swarm.system.errors import ConfigError
from echo2swarm.system.files import write_atomically
from echo2swarm.system.identity import Identity, hold_identity
from echo2swarm.system.logging import events_to
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import PolicyRules
from echo2swarm.weights.store.library import open_library
from echo2swarm.weights.transfer.rate_limit import UploadBudget, bytes_per_s_of
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from learner.config import LearnerConfig
from learner.config.changes import Change
from learner.config.file import resolved
from learner.evaluation.held_out import num_excluded
from learner.learner import Learner
from learner.ledger.ledger import open_ledger
from learner.ledger.resume import LeftOver
from learner.membership.announce import relay_manifests, sealed_advert, write_ticket
from learner.parts import LearnerParts
from learner.run.inputs import hold_to_inputs
from learner.run.model_folder import prepare_model
from learner.run.model_limits import check_prompts_fit, longest_question
from learner.run.restarts import Restarts
from learner.run.run_dir import RunDir
from learner.scoring.checking import check_task, has_answers_to_check
from learner.scoring.client import open_scorer
from learner.scoring.ports import HeldOut
from learner.state.link_table import LinkTable
from learner.status.metrics import open_metrics
from learner.status.tensorboard import require_tensorboard
from learner.tasks.inputs import Input, changed_inputs, differences
from learner.trainer.messages import Start
from learner.training.checkpoints import Checkpoints
from learner.training.first_error import one_error_at_a_time
from learner.training.publisher import SwarmPublisher
from learner.training.resume import check_changes, choose_checkpoint, take_up, tell_if_done
from learner.training.trainer_client import TrainerLostError, open_trainer
from learner.training.wait_for_disk import until_there_is_room
from protocols.sampling import MAX_STOP_TOKENS, SamplingParams

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
        checkpoint = None
        if resume:
            checkpoint = await choose_checkpoint(run_dir, ledger)
            await check_changes(run_dir, ledger, checkpoint, serving.changes)
            tell_if_done((await ledger.reach()).step, num_steps=config.run.num_steps)
        write_atomically(run_dir.config, resolved(config).encode())
        starting = await stack.enter_async_context(
            open_trainer(
                Start(
                    model_dir=str(model_dir),
                    trainer=msgspec.to_builtins(config.trainer),
                    seed=config.run.seed,
                    temperature=config.rollouts.temperature,
                    checkpoint_dir=str(checkpoint.trainer) if checkpoint else None,
                    max_new_tokens=config.rollouts.max_new_tokens,
                    fresh_optimizer=run_dir.begins_with_fresh_optimizer(checkpoint),
                    warmup_from=run_dir.warmup_from,
                ),
                log_path=run_dir.logs / "trainer.log",
            )
        )
        listen = reached.listen or config.swarm.listen
        network = await stack.enter_async_context(_open_network(config, identity, listen))
        if not config.swarm.advertise:
            reached.listen = with_ports(listen, network.addresses())
        scorer = await stack.enter_async_context(
            open_scorer(
                config.task, model_dir, seed=config.run.seed, log_path=run_dir.logs / "scorer.log"
            )
        )
        held_out = await stack.enter_async_context(
            _open_held_out(config, model_dir, run_dir, scorer.opened.inputs)
        )
        is_other_task = await hold_to_inputs(
            run_dir.inputs,
            model_dir,
            scorer.opened.inputs,
            # A trainer that died before anything was recorded began nothing.
            is_resumed=resume and (serving.resume or run_dir.inputs.exists()),
            accept=serving.accept_changed_inputs,
        )
        for warning in scorer.opened.warnings:
            log.warning("model.doubtful", what=warning)
        max_prompt_tokens = await check_prompts_fit(config, model_dir, scorer)
        stop_tokens = scorer.opened.stop_token_ids
        if len(stop_tokens) > MAX_STOP_TOKENS:
            raise ConfigError(f"[task] stops at {len(stop_tokens)} tokens, limit {MAX_STOP_TOKENS}")
        if has_answers_to_check(config.task) and not resume:
            log_path = run_dir.logs / "scorer.log"
            await check_task(config.task, seed=config.run.seed, log_path=log_path)
        trainer = await starting.ready()
        left_over = LeftOver()
        if resume:
            left_over = await take_up(
                run_dir,
                ledger,
                trainer,
                max_staleness=config.rollouts.max_staleness,
                are_same_prompts=not is_other_task,
            )
        library = await stack.enter_async_context(
            open_library(run_dir.weights, run=run_dir.run_id, learner_key=identity.key.public_key())
        )
        sampling = SamplingParams(
            temperature=config.rollouts.temperature,
            max_new_tokens=config.rollouts.max_new_tokens,
            stop_token_ids=stop_tokens,
        )
        announcer = ManifestAnnouncer(network, run_dir.run_id)
        traffic = Traffic()
        max_upload = bytes_per_s_of(config.swarm.upload_mbit)
        links = LinkTable(
            network.peer,
            traffic,
            random.Random(),  # noqa: S311 - who is paired is no secret
            max_upload_bytes_per_s=max_upload,
        )
        ChunkServer(
            network,
            library.store,
            traffic,
            budget=UploadBudget(max_upload),
            upload_rate_of=links.dealing_bytes_per_s,
        )
        step = trainer.started.step + len(left_over.updates)
        learner = Learner(
            LearnerParts(
                config=config,
                run_id=run_dir.run_id,
                network=network,
                traffic=traffic,
                links=links,
                trainer=trainer,
                scorer=scorer,
                publisher=SwarmPublisher(
                    library,
                    announcer,
                    assets=model_dir,
                    rules=PolicyRules(
                        sampling=sampling,
                        max_staleness=config.rollouts.max_staleness,
                        publish_every=config.rollouts.publish_every,
                    ),
                    key=identity.key,
                ),
                ledger=ledger,
                metrics=stack.enter_context(
                    open_metrics(run_dir, config.tracking, first_step=step + 1)
                ),
                checkpoints=Checkpoints(
                    run_dir.checkpoints,
                    trainer,
                    ledger,
                    table=config.checkpoint,
                    first_step=run_dir.first_step,
                    saved_step=checkpoint.step if checkpoint else None,
                ),
                sampling=sampling,
                vocab_size=trainer.started.vocab_size,
                step=step,
                left_over=left_over,
                snapshots=run_dir.snapshots,
                status_file=run_dir.status,
                held_out=held_out,
                first_step=run_dir.first_step,
                max_prompt_tokens=max_prompt_tokens,
            )
        )
        try:
            await _work(serving, learner, announcer, network, identity)
        finally:
            reached.step = learner.progress.step
            reached.is_stopping = learner.is_stopping


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


@asynccontextmanager
async def _open_held_out(
    config: LearnerConfig, model_dir: Path, run_dir: RunDir, inputs: tuple[Input, ...]
) -> AsyncIterator[HeldOut | None]:
    if not config.eval.every_steps:
        yield None
        return
    async with open_scorer(
        config.task,
        model_dir,
        seed=config.run.seed,
        log_path=run_dir.logs / "held-out.log",
        held_out_from=num_excluded(config),
    ) as scorer:
        if found := differences(inputs, scorer.opened.inputs):
            raise changed_inputs(found)  # between the start of the one and of the other
        yield HeldOut(
            scorer=scorer,
            num_prompts=scorer.opened.num_prompts,
            max_tokens=longest_question(config, model_dir),
        )


@asynccontextmanager
async def _open_network(
    config: LearnerConfig, identity: Identity, listen: Sequence[str]
) -> AsyncIterator[Network]:
    # Imported here: the library takes a second, which no other command should wait for.
    from echo2swarm.network.libp2p.network import open_network  # noqa: PLC0415

    async with open_network(
        identity,
        listen,
        advertise=config.swarm.advertise,
        is_go_between=config.swarm.hole_punching,
    ) as network:
        yield network
