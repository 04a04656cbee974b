"""The learner at work: everything between an open network and a finished run.

What waits for what::

    heartbeats -> membership -> activator (selector) -> directives
    prompts (scorer) -> dispatcher -> leases -> nodes
    nodes -> rollout service -> scorer -> ledger -> dispatcher (ready groups)
    training loop <- ready groups; -> trainer -> publishing -> nodes
"""

from collections.abc import Callable
from functools import partial

import structlog
import trio

from echo2swarm.network.addresses import host_in
from echo2swarm.network.serving import leaves
from echo2swarm.scheduling.leases.groups import DropReason
from echo2swarm.system.rates import LearnerPhase
from learner.membership.activator import Activator
from learner.membership.advert_addresses import AdvertFilter
from learner.membership.heartbeats import HeartbeatService
from learner.node_calls import serve_nodes
from learner.parts import LearnerParts, make_state, silence_s
from learner.rollouts.cancel_answers import CancelAnswers
from learner.rollouts.prompts import feed_prompts
from learner.status.progress_log import beat
from learner.status.service import StatusService, watch_loop_delay
from learner.status.watchdog import Watchdog, stall_facts, watch
from learner.training.publish_queue import PublishQueue
from learner.training.trainer_client import TrainerLostError
from learner.training.training_loop import TrainingLoop
from learner.training.wait_for_disk import when_there_is_room
from learner.work_kinds import make_evaluation, make_kinds
from protocols.ids import PeerId

log = structlog.get_logger()


class Learner:
    """One run, from the trainer's step to its last."""

    def __init__(self, parts: LearnerParts) -> None:
        config = parts.config
        self._parts = parts
        self._state = state = make_state(parts)
        self._changes = state.changes
        self._answering = CancelAnswers()
        self.dispatcher, self.desk = state.dispatcher, state.desk
        self.nodes, self.progress, self.gate = state.nodes, state.progress, state.gate
        self.evaluation = make_evaluation(parts, state)
        self._kinds = make_kinds(parts, state, self.evaluation)
        self.activator = Activator(
            nodes=self.nodes,
            links=parts.links,
            progress=self.progress,
            selector=config.selector,
            changes=self._changes,
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
            changes=self._changes,
            host_of=self._host_of,
            newest_version=lambda: self.dispatcher.newest_version,
            adverts=AdvertFilter(parts.run_at or parts.network.addresses()),
        )
        self.watchdog = Watchdog(config.run.stall_s)
        self.status = self._status_service()
        self._publishing = PublishQueue(
            parts.publisher,
            dispatcher=self.dispatcher,
            nodes=self.nodes,
            ledger=parts.ledger,
            changes=self._changes,
            metrics=parts.metrics,
        )
        self._loop = TrainingLoop(
            parts.trainer,
            self.desk,
            nodes=self.nodes,
            ledger=parts.ledger,
            progress=self.progress,
            changes=self._changes,
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
        facts = partial(
            stall_facts, self.dispatcher, self.nodes, self.progress, parts.scorer.wait_of
        )
        nursery.start_soon(watch, self.watchdog, facts)
        if self.evaluation is not None:
            await self.evaluation.open()
            nursery.start_soon(self.evaluation.run)
        nursery.start_soon(self._feed_prompts)
        await self._publish_first()
        serve_nodes(
            parts,
            self._state,
            self._kinds,
            membership=self.membership,
            status_service=self.status,
            answering=self._answering,
        )
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

    def _status_service(self) -> StatusService:
        parts = self._parts
        return StatusService(
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
            self._changes,
            next_prompt=self._parts.left_over.next_group,
            skipped=self._parts.left_over.skipped,
            held_out=self.evaluation.prompt_tokens if self.evaluation else (),
            max_tokens=self._parts.max_prompt_tokens,
            left_out=self.progress.left_out,
        )

    def _host_of(self, peer: PeerId) -> str:
        ends = self._parts.network.ends(peer)
        return "" if ends is None else host_in(ends.other)

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
        await self.membership.dismiss(grace_s=silence_s(self._parts.config))
