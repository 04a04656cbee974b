"""The learner at work: everything between an open network and a finished run.

What waits for what::

    heartbeats -> membership -> activator (selector) -> directives
    prompts (scorer) -> dispatcher -> leases -> nodes
    nodes -> rollout service -> scorer -> ledger -> dispatcher (ready groups)
    training loop <- ready groups; -> trainer -> publishing -> nodes
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from echo2swarm.network.addresses import host_in
from echo2swarm.network.base import Network
from echo2swarm.network.rpc import Answer, serve_calls
from echo2swarm.network.serving import leaves
from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.groups import DropReason
from echo2swarm.scheduling.leases.lease_rules import DispatchRules
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.rates import LearnerPhase, Timeline
from echo2swarm.weights.transfer.traffic import Traffic
from learner.config import LearnerConfig
from learner.evaluation.live import LiveEvaluation
from learner.evaluation.round import RoundPlan
from learner.evaluation.schedule import EvaluationSchedule
from learner.ledger.ledger import Ledger
from learner.ledger.resume import LeftOver
from learner.membership.activator import Activator
from learner.membership.heartbeats import HeartbeatService
from learner.membership.probes import ProbeService
from learner.rollouts.cancel_answers import CancelAnswers
from learner.rollouts.checks import ContentRules
from learner.rollouts.lease_desk import LeaseDesk
from learner.rollouts.lease_service import LeaseService
from learner.rollouts.prompts import feed_prompts
from learner.rollouts.rollout_service import RolloutService
from learner.rollouts.training_work import TrainingWork
from learner.rollouts.work_kind import WorkKind
from learner.scoring.ports import HeldOut, Scorer
from learner.scoring.verifier_gate import VerifierGate
from learner.state.link_table import LinkTable
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from learner.status.metrics import Metrics
from learner.status.progress_log import beat
from learner.status.service import StatusService, watch_loop_delay
from learner.status.watchdog import Watchdog, stall_facts, watch
from learner.training.checkpoints import Checkpoints
from learner.training.ports import Publisher, Trainer
from learner.training.publish_queue import PublishQueue
from learner.training.trainer_client import TrainerLostError
from learner.training.training_loop import TrainingLoop
from learner.training.wait_for_disk import when_there_is_room
from protocols import heartbeat, leases, rollouts, status
from protocols.ids import PeerId, RunId
from protocols.leases import MAX_PROMPT_TOKENS
from protocols.sampling import SamplingParams

_JUDGE_S: Final = 300.0
"""For one submission: scoring runs the user's code."""
_ANSWER_S: Final = 20.0
_WORK_CALLS_PER_S: Final = 100.0
"""Of one node, for leases as for submissions: tiny models are done soon."""
_HEARTBEATS_PER_S: Final = 10.0
"""Of one node: it also beats when something changes."""
_STATUS_PER_S: Final = 2.0
"""Of one peer."""
_MAX_MISSED_HEARTBEATS: Final = 3
_SILENCE_MARGIN_S: Final = 4.0

log = structlog.get_logger()


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


class Learner:
    """One run, from the trainer's step to its last."""

    def __init__(self, parts: LearnerParts) -> None:
        config = parts.config
        now_s = trio.current_time()
        self._parts = parts
        self._bell = ChangeEvent()
        self._answering = CancelAnswers()
        self.dispatcher = Dispatcher(
            _dispatch_rules(config, parts.sampling),
            num_leases=parts.left_over.num_leases,
            next_step=parts.step,
        )
        self.nodes = NodeTable(
            silent_after_s=_MAX_MISSED_HEARTBEATS * config.swarm.heartbeat_s + _SILENCE_MARGIN_S,
            contributions=parts.left_over.contributions,
        )
        self.progress = LearnerProgress(
            step=parts.step,
            num_steps=config.run.num_steps,
            started_s=now_s,
            rollouts=config.rollouts,
            timeline=Timeline(now_s),
        )
        self.desk = LeaseDesk(
            self.dispatcher,
            nodes=self.nodes,
            ledger=parts.ledger,
            progress=self.progress,
            bell=self._bell,
        )
        self.gate = VerifierGate()
        self.evaluation = None if parts.held_out is None else self._evaluation(parts.held_out)
        training = TrainingWork(
            desk=self.desk,
            rules=_content_rules(parts, parts.sampling),
            scorer=parts.scorer,
            gate=self.gate,
            nodes=self.nodes,
            ledger=parts.ledger,
            progress=self.progress,
            bell=self._bell,
        )
        self._kinds: list[WorkKind] = [*([self.evaluation] if self.evaluation else []), training]
        self.activator = Activator(
            nodes=self.nodes,
            links=parts.links,
            progress=self.progress,
            selector=config.selector,
            bell=self._bell,
        )
        self.membership = HeartbeatService(
            self._kinds,
            run_id=parts.run_id,
            nodes=self.nodes,
            ledger=parts.ledger,
            progress=self.progress,
            activator=self.activator,
            heartbeat_s=config.swarm.heartbeat_s,
            links=parts.links,
            bell=self._bell,
            host_of=self._host_of,
            newest_version=lambda: self.dispatcher.newest_version,
        )
        self.watchdog = Watchdog(config.run.stall_s)
        self.status = StatusService(
            run_id=parts.run_id,
            network=parts.network,
            dispatcher=self.dispatcher,
            nodes=self.nodes,
            progress=self.progress,
            traffic=parts.traffic,
            links=parts.links,
            activator=self.activator,
            watchdog=self.watchdog,
            gate=self.gate,
            wait_of=parts.scorer.wait_of,
            kinds=self._kinds,
            evaluation=None if self.evaluation is None else self.evaluation.status,
        )
        self._publishing = PublishQueue(
            parts.publisher,
            dispatcher=self.dispatcher,
            nodes=self.nodes,
            ledger=parts.ledger,
            bell=self._bell,
            metrics=parts.metrics,
        )
        self._loop = TrainingLoop(
            parts.trainer,
            self.desk,
            nodes=self.nodes,
            ledger=parts.ledger,
            progress=self.progress,
            bell=self._bell,
            snapshots=parts.snapshots,
            hand_on=self._publishing.hand_on,
            saver=parts.checkpoints,
            max_skipped=config.trainer.max_skipped_steps,
        )

    @property
    def is_stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._loop.is_stopping

    def stop(self) -> None:
        """End after the update that is being made, with a checkpoint."""
        log.info("run.stopping", why="interrupted", next="a checkpoint is saved")
        self._loop.stop()
        if self.evaluation is not None:
            self.evaluation.stop()

    async def run(self, *, on_started: Callable[[], None]) -> bool:
        """Run; returns whether all steps are done (or else it was stopped).

        Args:
            on_started: called when the first version is out and nodes are answered.
        """
        try:
            async with self._answering.open(), trio.open_nursery() as nursery:
                is_done = await self._run_in(nursery, on_started)
                nursery.cancel_scope.cancel()
        except Exception as exc:
            is_restart = any(isinstance(leaf, TrainerLostError) for leaf in leaves(exc))
            phase = LearnerPhase.STARTING if is_restart else LearnerPhase.FAILED
            self.progress.timeline.enter(phase, trio.current_time())
            raise
        finally:
            with trio.CancelScope(shield=True):
                await self.status.write_file(self._parts.status_file)
        return is_done

    async def _run_in(self, nursery: trio.Nursery, on_started: Callable[[], None]) -> bool:
        parts = self._parts
        await self.desk.restore(parts.left_over)
        self.progress.staleness = await parts.ledger.staleness_histogram()
        nursery.start_soon(parts.ledger.watch)
        if parts.metrics.tracker is not None:
            nursery.start_soon(parts.metrics.tracker.run)
        nursery.start_soon(parts.checkpoints.run)
        nursery.start_soon(self.status.keep_file, parts.status_file)
        nursery.start_soon(watch_loop_delay, self.progress)
        nursery.start_soon(beat, self.status.status, self.progress.typical_step_s)
        nursery.start_soon(
            watch, self.watchdog, partial(stall_facts, self.dispatcher, self.nodes, self.progress)
        )
        if self.evaluation is not None:
            await self.evaluation.open()
            nursery.start_soon(self.evaluation.run)
        nursery.start_soon(self._feed_prompts)
        await self._publish_first()
        self._serve()
        nursery.start_soon(self.desk.watch)
        nursery.start_soon(self.membership.watch)
        nursery.start_soon(self.activator.run)
        nursery.start_soon(self._publishing.run)
        on_started()
        await self._loop.run()
        await self._publishing.wait_idle()
        is_done = self.progress.step >= self.progress.num_steps
        if is_done:
            if self.evaluation is not None:
                self.progress.timeline.enter(LearnerPhase.EVALUATING, trio.current_time())
                await self.evaluation.finish()
            await self._finish()
        else:
            self.progress.timeline.enter(LearnerPhase.STOPPED, trio.current_time())
        return is_done

    def _evaluation(self, held_out: HeldOut) -> LiveEvaluation:
        parts, config = self._parts, self._parts.config
        sampling = _eval_sampling(config, parts.sampling)
        num_steps, publish_every = config.run.num_steps, config.rollouts.publish_every
        return LiveEvaluation(
            config.eval,
            RoundPlan(
                samples_per_prompt=config.eval.num_samples,
                sampling=sampling,
                seed=config.run.seed,
                lease_timeout_s=config.rollouts.lease_timeout_s,
                last_step=num_steps,
            ),
            EvaluationSchedule(
                every_steps=config.eval.every_steps,
                first_version=parts.first_step,
                last_version=num_steps - num_steps % publish_every,
            ),
            held_out=held_out,
            rules=_content_rules(parts, sampling),
            dispatcher=self.dispatcher,
            nodes=self.nodes,
            ledger=parts.ledger,
            progress=self.progress,
            metrics=parts.metrics,
            bell=self._bell,
        )

    async def _publish_first(self) -> None:
        """Publish the weights that the trainer starts from."""
        step = self.progress.step
        self._parts.snapshots.mkdir(parents=True, exist_ok=True)
        snapshot = self._parts.snapshots / f"step-{step:08d}"
        await when_there_is_room("weights", partial(self._parts.trainer.write_weights, snapshot))
        await self._publishing.publish(
            step, snapshot, expected_sha256=self._parts.left_over.weights_sha256
        )

    async def _feed_prompts(self) -> None:
        await feed_prompts(
            self._parts.scorer,
            self.dispatcher,
            self._bell,
            next_prompt=self._parts.left_over.next_group,
            skipped=self._parts.left_over.skipped,
            held_out=self.evaluation.prompt_tokens if self.evaluation else (),
            max_tokens=self._parts.max_prompt_tokens,
            left_out=self.progress.left_out,
        )

    def _serve(self) -> None:
        parts = self._parts
        parts.network.protect(self.nodes.is_proven)
        lease_service = LeaseService(
            self._kinds,
            run_id=parts.run_id,
            nodes=self.nodes,
            progress=self.progress,
            bell=self._bell,
            wait_of=parts.scorer.wait_of,
        )
        rollout_service = RolloutService(
            self._kinds,
            run_id=parts.run_id,
            nodes=self.nodes,
            ledger=parts.ledger,
            progress=self.progress,
            bell=self._bell,
        )

        def serve(
            protocol: str,
            fn: Answer,
            limits: tuple[int, int],
            timeout_s: float,
            *,
            max_per_s: float = _WORK_CALLS_PER_S,
        ) -> None:
            serve_calls(
                parts.network,
                protocol,
                self._answering.guard(fn),
                max_request_bytes=limits[0],
                max_reply_bytes=limits[1],
                timeout_s=timeout_s,
                max_per_s=max_per_s,
            )

        serve(
            heartbeat.PROTOCOL_ID,
            self.membership.answer,
            (heartbeat.MAX_REQUEST_BYTES, heartbeat.MAX_REPLY_BYTES),
            _ANSWER_S,
            max_per_s=_HEARTBEATS_PER_S,
        )
        for protocol, answer in (
            (leases.PROTOCOL_ID, lease_service.answer),
            (leases.OLD_PROTOCOL_ID, lease_service.answer_old),
        ):
            serve(
                protocol,
                answer,
                (leases.MAX_REQUEST_BYTES, leases.MAX_REPLY_BYTES),
                leases.MAX_WAIT_S + _ANSWER_S,
            )
        serve(
            rollouts.PROTOCOL_ID,
            rollout_service.answer,
            (rollouts.MAX_REQUEST_BYTES, rollouts.MAX_REPLY_BYTES),
            _JUDGE_S,
        )
        serve(
            status.PROTOCOL_ID,
            self.status.answer,
            (status.MAX_REQUEST_BYTES, status.MAX_REPLY_BYTES),
            _ANSWER_S,
            max_per_s=_STATUS_PER_S,
        )
        ProbeService(
            run_id=parts.run_id,
            is_member=self._is_present,
            is_sending=lambda: parts.links.is_sending(trio.current_time()),
            on_measured=parts.links.probed,
        ).serve(parts.network)

    def _host_of(self, peer: PeerId) -> str:
        ends = self._parts.network.ends(peer)
        return "" if ends is None else host_in(ends.other)

    def _is_present(self, peer: PeerId) -> bool:
        node = self.nodes.get(peer)
        return node is not None and not node.is_lost

    async def _finish(self) -> None:
        now_s = trio.current_time()
        self.progress.is_finished = True
        self.progress.timeline.enter(LearnerPhase.FINISHED, now_s)
        log.info(
            "run.finished",
            step=self.progress.step,
            seconds_by_phase={
                phase.value: round(seconds, 2)
                for phase, seconds in self.progress.timeline.totals_s(now_s).items()
            },
        )
        await self.desk.drop_all(DropReason.RUN_ENDED)
        # Long enough for every node to ask once more, and to leave.
        await self.membership.dismiss(
            grace_s=_MAX_MISSED_HEARTBEATS * self._parts.config.swarm.heartbeat_s
            + _SILENCE_MARGIN_S
        )


def _dispatch_rules(config: LearnerConfig, sampling: SamplingParams) -> DispatchRules:
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


def _eval_sampling(config: LearnerConfig, sampling: SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=config.eval.temperature or sampling.temperature,
        max_new_tokens=config.eval.max_new_tokens or sampling.max_new_tokens,
        stop_token_ids=sampling.stop_token_ids,
    )


def _content_rules(parts: LearnerParts, sampling: SamplingParams) -> ContentRules:
    return ContentRules(
        max_new_tokens=sampling.max_new_tokens,
        stop_token_ids=frozenset(sampling.stop_token_ids),
        vocab_size=parts.vocab_size,
    )
