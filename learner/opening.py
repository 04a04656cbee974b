"""What ``echo2-learner serve`` opens for the learner: network, task with its scorers, weights.

Each function opens one of them; :mod:`learner.app` says in which order.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from echo2swarm.network.base import Network
from echo2swarm.system.errors import ConfigError
from echo2swarm.system.identity import Identity
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.store.library import VersionLibrary, open_library
from echo2swarm.weights.transfer.rate_limit import UploadBudget, bytes_per_s_of
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from learner.config import LearnerConfig
from learner.evaluation.held_out import num_excluded
from learner.run.checkpoint_store import Checkpoint
from learner.run.inputs import hold_to_inputs
from learner.run.model_limits import check_prompts_fit, longest_question
from learner.run.run_dir import RunDir
from learner.scoring.checking import check_task, has_answers_to_check
from learner.scoring.client import open_scorer
from learner.scoring.ports import HeldOut, Scorer
from learner.state.link_table import LinkTable
from learner.tasks.inputs import Input, changed_inputs, differences
from learner.trainer.messages import Start
from protocols.sampling import MAX_STOP_TOKENS, SamplingParams

log = structlog.get_logger()


def start_of_trainer(
    config: LearnerConfig, run_dir: RunDir, model_dir: Path, checkpoint: Checkpoint | None
) -> Start:
    """Return what the trainer process is told first."""
    return Start(
        model_dir=str(model_dir),
        trainer=msgspec.to_builtins(config.trainer),
        seed=config.run.seed,
        temperature=config.rollouts.temperature,
        checkpoint_dir=str(checkpoint.trainer) if checkpoint else None,
        max_new_tokens=config.rollouts.max_new_tokens,
        fresh_optimizer=run_dir.begins_with_fresh_optimizer(checkpoint),
        warmup_from=run_dir.warmup_from,
    )


@asynccontextmanager
async def open_swarm_network(
    config: LearnerConfig, identity: Identity, listen: Sequence[str]
) -> AsyncIterator[Network]:
    """Take part in the network, as ``config`` says."""
    # Imported here: the library takes a second, which no other command should wait for.
    from echo2swarm.network.libp2p.network import open_network  # noqa: PLC0415

    async with open_network(
        identity,
        listen,
        advertise=config.swarm.advertise,
        is_go_between=config.swarm.hole_punching,
    ) as network:
        yield network


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOfRun:
    """The task of a run, checked and ready to score."""

    scorer: Scorer
    held_out: HeldOut | None
    are_same_prompts: bool
    """Whether it makes the prompts that it made before the run was resumed."""
    max_prompt_tokens: int
    sampling: SamplingParams


@asynccontextmanager
async def open_task_of_run(
    config: LearnerConfig,
    run_dir: RunDir,
    model_dir: Path,
    *,
    is_resumed: bool,
    is_first_start: bool,
    accept_changed_inputs: bool,
) -> AsyncIterator[TaskOfRun]:
    """Start the scorer processes, and check that the run can use their task.

    Raises:
        SwarmError: it can't; the message says why.
    """
    async with AsyncExitStack() as stack:
        log_path = run_dir.logs / "scorer.log"
        scorer = await stack.enter_async_context(
            open_scorer(config.task, model_dir, seed=config.run.seed, log_path=log_path)
        )
        held_out = await stack.enter_async_context(
            _open_held_out(config, model_dir, run_dir, scorer.opened.inputs)
        )
        is_other_task = await hold_to_inputs(
            run_dir.inputs,
            model_dir,
            scorer.opened.inputs,
            is_resumed=is_resumed,
            accept=accept_changed_inputs,
        )
        for warning in scorer.opened.warnings:
            log.warning("model.doubtful", what=warning)
        max_prompt_tokens = await check_prompts_fit(config, model_dir, scorer)
        stop_tokens = scorer.opened.stop_token_ids
        if len(stop_tokens) > MAX_STOP_TOKENS:
            raise ConfigError(f"[task] stops at {len(stop_tokens)} tokens, limit {MAX_STOP_TOKENS}")
        if has_answers_to_check(config.task) and is_first_start:
            await check_task(config.task, seed=config.run.seed, log_path=log_path)
        yield TaskOfRun(
            scorer=scorer,
            held_out=held_out,
            are_same_prompts=not is_other_task,
            max_prompt_tokens=max_prompt_tokens,
            sampling=SamplingParams(
                temperature=config.rollouts.temperature,
                max_new_tokens=config.rollouts.max_new_tokens,
                stop_token_ids=stop_tokens,
            ),
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The versions of the policy, and what brings them to the nodes."""

    library: VersionLibrary
    announcer: ManifestAnnouncer
    traffic: Traffic
    links: LinkTable


@asynccontextmanager
async def open_weights(
    config: LearnerConfig, run_dir: RunDir, network: Network, identity: Identity
) -> AsyncIterator[Weights]:
    """Open the library of versions, and serve their chunks."""
    async with open_library(
        run_dir.weights, run=run_dir.run_id, learner_key=identity.key.public_key()
    ) as library:
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
        yield Weights(
            library=library,
            announcer=ManifestAnnouncer(network, run_dir.run_id),
            traffic=traffic,
            links=links,
        )
