"""What a learner is made of: what others open for it, and the state that its services share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from echo2swarm.network.base import Network
from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.lease_rules import DispatchRules
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.rates import Timeline
from echo2swarm.weights.transfer.traffic import Traffic
from learner.config import LearnerConfig
from learner.ledger.ledger import Ledger
from learner.ledger.resume import LeftOver
from learner.rollouts.checks import ContentRules
from learner.rollouts.lease_desk import LeaseDesk
from learner.scoring.ports import HeldOut, Scorer
from learner.scoring.verifier_gate import VerifierGate
from learner.state.link_table import LinkTable
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from learner.status.metrics import Metrics
from learner.training.checkpoints import Checkpoints
from learner.training.ports import Publisher, Trainer
from protocols.ids import RunId
from protocols.leases import MAX_PROMPT_TOKENS
from protocols.sampling import SamplingParams

_MAX_MISSED_HEARTBEATS: Final = 3
_SILENCE_MARGIN_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerParts:
    """What the learner works with; opened, and closed, by others."""

    config: LearnerConfig
    run_id: RunId
    network: Network
    traffic: Traffic
    links: LinkTable
    trainer: Trainer
    scorer: Scorer
    publisher: Publisher
    ledger: Ledger
    metrics: Metrics
    checkpoints: Checkpoints
    sampling: SamplingParams
    vocab_size: int
    step: int
    """The updates that the trainer has done already, replayed ones included."""
    left_over: LeftOver
    """What the ledger holds of an earlier process."""
    snapshots: Path
    status_file: Path
    held_out: HeldOut | None = None
    """What is evaluated on while the run goes on; None for no evaluation."""
    first_step: int = 0
    """Where the run began."""
    max_prompt_tokens: int = MAX_PROMPT_TOKENS
    """The longest prompt that a completion fits behind."""
    run_at: tuple[str, ...] = ()
    """The learner's own addresses, with names looked up; empty for those of ``network``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What the services of one learner look at and change."""

    changes: ChangeEvent
    """Rung when there may be work for somebody."""
    dispatcher: Dispatcher
    nodes: NodeTable
    progress: LearnerProgress
    desk: LeaseDesk
    gate: VerifierGate


def make_state(parts: LearnerParts) -> RunState:
    """Return the state in which a run begins, or goes on."""
    config, now_s = parts.config, trio.current_time()
    changes = ChangeEvent()
    dispatcher = Dispatcher(
        dispatch_rules(config, parts.sampling),
        num_leases=parts.left_over.num_leases,
        next_step=parts.step,
    )
    nodes = NodeTable(silent_after_s=silence_s(config), contributions=parts.left_over.contributions)
    progress = LearnerProgress(
        step=parts.step,
        num_steps=config.run.num_steps,
        started_s=now_s,
        rollouts=config.rollouts,
        timeline=Timeline(now_s),
    )
    desk = LeaseDesk(
        dispatcher, nodes=nodes, ledger=parts.ledger, progress=progress, changes=changes
    )
    return RunState(
        changes=changes,
        dispatcher=dispatcher,
        nodes=nodes,
        progress=progress,
        desk=desk,
        gate=VerifierGate(),
    )


def silence_s(config: LearnerConfig) -> float:
    """Return for how long a node may be silent before it is lost."""
    return _MAX_MISSED_HEARTBEATS * config.swarm.heartbeat_s + _SILENCE_MARGIN_S


def dispatch_rules(config: LearnerConfig, sampling: SamplingParams) -> DispatchRules:
    """Return how work of training is given out."""
    table = config.rollouts
    return DispatchRules(
        run_seed=config.run.seed,
        groups_per_step=table.prompts_per_step,
        group_size=table.group_size,
        max_staleness=table.max_staleness,
        publish_every=table.publish_every,
        headroom=table.headroom,
        lease_prompts=None if isinstance(table.lease_prompts, str) else table.lease_prompts,
        lease_timeout_s=table.lease_timeout_s,
        sampling=sampling,
        num_steps=config.run.num_steps,
        max_replaced=(
            table.max_replaced * table.prompts_per_step if table.equal_groups == "replace" else 0
        ),
    )


def evaluation_sampling(config: LearnerConfig, sampling: SamplingParams) -> SamplingParams:
    """Return how held-out prompts are sampled."""
    return SamplingParams(
        temperature=config.eval.temperature or sampling.temperature,
        max_new_tokens=config.eval.max_new_tokens or sampling.max_new_tokens,
        stop_token_ids=sampling.stop_token_ids,
    )


def content_rules(parts: LearnerParts, sampling: SamplingParams) -> ContentRules:
    """Return what completions must be like that were sampled so."""
    return ContentRules(
        max_new_tokens=sampling.max_new_tokens,
        stop_token_ids=frozenset(sampling.stop_token_ids),
        vocab_size=parts.vocab_size,
    )
