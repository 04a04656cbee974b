"""The learner's loop: wait for a batch, train on it, hand on the weights, save now and then.

With ``max_staleness`` >= 1, nodes generate while the trainer trains and while a version
travels: the next batch is often there before the update ends. With 0, every batch waits
for rollouts of the version just published. The same code does both; what differs is only
which leases are granted.
"""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import structlog
import trio

from echo2swarm.scheduling.leases.batcher import TrainingBatch
from echo2swarm.scheduling.leases.groups import AcceptedRollout, CompleteGroup
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import SwarmError
from echo2swarm.system.rates import LearnerPhase
from learner.ledger.ledger import Ledger
from learner.rollouts.lease_desk import LeaseDesk, NextBatch
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress, p95_or_none
from learner.trainer.messages import TrainGroup, TrainRollout, Updated
from learner.training.cut_off import CutOffs, warn_of_cut_offs
from learner.training.ports import CheckpointSaver, Trainer
from learner.training.wait_for_disk import when_there_is_room
from protocols.ids import PeerId, short

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One update, for whoever publishes its weights and writes its line of metrics."""

    step: int
    """Updates done with it."""
    snapshot: Path | None
    """Its weights, if they are to be published."""
    metrics: dict[str, Any]


HandOn = Callable[[StepDone], Awaitable[None]]


class TrainingFailedError(SwarmError):
    """Training leads nowhere; the last good state is in a checkpoint."""


class TrainingLoop:
    """Trains until all steps are done, or until asked to stop.

    Args:
        trainer: makes the updates.
        desk: groups and leases.
        nodes: for contributions.
        ledger: where updates are recorded.
        progress: position and pace.
        changes: notified whenever a batch might be complete.
        snapshots: folder for weights on their way to the publisher.
        hand_on: takes every finished update; may hold the loop up, but not for a broadcast.
        saver: keeps checkpoints.
        max_skipped: updates in a row without a finite gradient, before the run stops.
    """

    def __init__(
        self,
        trainer: Trainer,
        desk: LeaseDesk,
        *,
        nodes: NodeTable,
        ledger: Ledger,
        progress: LearnerProgress,
        changes: ChangeEvent,
        snapshots: Path,
        hand_on: HandOn,
        saver: CheckpointSaver,
        max_skipped: int,
    ) -> None:
        self._trainer = trainer
        self._desk = desk
        self._nodes = nodes
        self._ledger = ledger
        self._progress = progress
        self._changes = changes
        self._snapshots = snapshots
        self._hand_on = hand_on
        self._saver = saver
        self._max_skipped = max_skipped
        self._num_skipped = 0
        """In a row."""
        self._stopping = False
        self._num_replaced = 0
        self._cut_offs = CutOffs()

    @property
    def is_stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping

    def stop(self) -> None:
        """End after the update that is being made, if any, with a checkpoint."""
        self._stopping = True
        self._changes.notify()

    async def run(self) -> None:
        """Train; returns with a checkpoint of the last step saved.

        Raises:
            TrainingFailedError: too many updates in a row came to nothing.
        """
        ended_s = trio.current_time()
        while self._progress.step < self._progress.num_steps and not self._stopping:
            wait_started_s = self._enter(LearnerPhase.WAITING)
            batch = await self._next_batch()
            if batch is None:
                break
            wait_s = trio.current_time() - wait_started_s
            updated, train_s = await self._train(batch, wait_s)
            now_s = trio.current_time()
            self._progress.step_s.add(now_s - ended_s, now_s)
            ended_s = now_s
            metrics = self._metrics(batch, updated, wait_s=wait_s, train_s=train_s)
            warn_of_cut_offs(
                self._cut_offs,
                metrics,
                max_new_tokens=self._progress.rollouts.max_new_tokens,
            )
            await self._finish_step(metrics)
            await self._count_skipped(updated)
        self._enter(LearnerPhase.CHECKPOINTING)
        await self._saver.save_last(self._progress.step)

    async def _next_batch(self) -> TrainingBatch | None:
        """Return the next batch, as soon as there is one; None if asked to stop."""
        while not self._stopping:
            change = self._changes.next_change
            formed = await self._desk.form_batch(self._progress.step)
            if formed is not None:
                self._note_equal_groups(formed)
                return formed.batch
            await change.wait()
        return None

    async def _train(self, batch: TrainingBatch, wait_s: float) -> tuple[Updated, float]:
        batch.assert_fresh(max_staleness=self._desk.dispatcher.rules.max_staleness)
        started_s = self._enter(LearnerPhase.TRAINING)
        leases = self._desk.dispatcher.leases
        log.info(
            "training.started",
            step=batch.step,
            waited_s=round(wait_s, 3),
            num_rollouts=sum(len(group.rollouts) for group in batch.groups),
            staleness=_named(batch.staleness()),
            num_in_flight=leases.num_unsettled,
        )
        updated = await self._trainer.update(batch.step, to_train(batch.groups))
        train_s = trio.current_time() - started_s
        await self._ledger.trained(batch, now_unix_s=time.time())
        self._progress.step = updated.step
        self._progress.train_s.add(train_s, trio.current_time())
        self._progress.staleness = await self._ledger.staleness_histogram()
        self._progress.reward_mean = fmean(r.reward for r in _rollouts(batch))
        num_tokens = sum(rollout.num_tokens for rollout in _rollouts(batch))
        self._progress.trained_tokens.add(num_tokens, trio.current_time())
        for rollout in _rollouts(batch):
            self._nodes.trained(rollout.peer, 1)
        await self._judge_sampling(updated)
        log.info(
            "training.done",
            step=updated.step,
            train_s=round(train_s, 3),
            reward_mean=round(self._progress.reward_mean, 4),
            # More than 0 shows that nodes generated while the trainer trained.
            num_in_flight=leases.num_unsettled,
            num_ready=len(self._desk.dispatcher.ready),
        )
        return updated, train_s

    async def _judge_sampling(self, updated: Updated) -> None:
        """Turn away the nodes whose rollouts turn out not to be sampled from the policy."""
        for name, found in updated.sampled_by.items():
            peer = PeerId(name)
            if why := self._nodes.sampled(peer, found, trio.current_time()):
                log.warning("node.not_sampled", peer=short(peer), why=why)
                # What it has in hand is for others.
                await self._desk.end_sessions(peer, except_session=None)
                self._changes.notify()

    async def _finish_step(self, metrics: dict[str, Any]) -> None:
        step, rules = self._progress.step, self._desk.dispatcher.rules
        snapshot: Path | None = None
        if step % rules.publish_every == 0:
            started_s = self._enter(LearnerPhase.PUBLISHING)
            snapshot = self._snapshots / f"step-{step:08d}"
            self._snapshots.mkdir(parents=True, exist_ok=True)
            await when_there_is_room("weights", partial(self._trainer.write_weights, snapshot))
            metrics["write_s"] = trio.current_time() - started_s
        await self._hand_on(StepDone(step=step, snapshot=snapshot, metrics=metrics))
        if self._saver.is_due(step):
            self._enter(LearnerPhase.CHECKPOINTING)
            await self._saver.save(step)

    async def _count_skipped(self, updated: Updated) -> None:
        """Take note of an update that was not applied, because it would have ruined the weights."""
        if not updated.metrics.get("is_not_finite"):
            self._num_skipped = 0
            return
        self._num_skipped += 1
        self._progress.num_skipped_steps += 1
        log.warning(
            "training.skipped",
            step=updated.step,
            why="its gradient is not finite; no weight was changed",
            num_in_a_row=self._num_skipped,
        )
        if self._num_skipped < self._max_skipped:
            return
        self._enter(LearnerPhase.CHECKPOINTING)
        await self._saver.save_last(updated.step)
        raise TrainingFailedError(
            f"{self._num_skipped} updates in a row gave a NaN or infinity and were skipped; the "
            f"last good weights are in the checkpoint of step {updated.step}. Look at the last "
            "lines of metrics.jsonl, lower trainer.learning_rate or trainer.max_grad_norm, and "
            "go on with --resume, or from an earlier checkpoint with echo2-learner fork"
        )

    def _metrics(
        self, batch: TrainingBatch, updated: Updated, *, wait_s: float, train_s: float
    ) -> dict[str, Any]:
        """Return the update's line for ``metrics.jsonl``; see ``docs/metrics.md``."""
        now_s, progress = trio.current_time(), self._progress
        rollouts = _rollouts(batch)
        rewards = [rollout.reward for rollout in rollouts]
        lags = [batch.step - rollout.version for rollout in rollouts]
        return {
            "step": updated.step,
            "unix_s": time.time(),
            "reward_mean": fmean(rewards),
            "reward_std": pstdev(rewards),
            "num_rollouts": len(rollouts),
            "num_tokens": sum(rollout.num_tokens for rollout in rollouts),
            "truncated_share": fmean(rollout.is_truncated for rollout in rollouts),
            "staleness_mean": fmean(lags),
            "staleness_max": max(lags),
            "staleness": _named(batch.staleness()),
            "wait_s": wait_s,
            "train_s": train_s,
            "write_s": 0.0,
            "publish_s": 0.0,
            "broadcast_s": p95_or_none(progress.broadcast_s.get(now_s)),
            "rollouts_per_s": progress.accepted.per_s(now_s),
            "needed_rollouts_per_s": progress.needed_rollouts_per_s(now_s),
            "num_in_flight": self._desk.dispatcher.leases.num_unsettled,
            "num_groups_replaced": self._num_replaced,
            "num_nodes": len(self._nodes.present),
            "drift_by_peer": updated.drift_by_peer,
            "left_out_by_peer": {
                peer: found.num_left_out
                for peer, found in updated.sampled_by.items()
                if found.num_left_out
            },
            "by_staleness": {str(lag): of_it for lag, of_it in updated.by_staleness.items()},
            "trainer": updated.metrics,
        }

    def _note_equal_groups(self, formed: NextBatch) -> None:
        self._num_replaced = formed.num_replaced
        if formed.num_replaced and formed.num_kept:
            log.warning(
                "groups.kept_without_signal",
                step=formed.batch.step,
                num_replaced=formed.num_replaced,
                num_kept=formed.num_kept,
                why="rollouts.max_replaced is reached; is the task too easy or too hard?",
            )

    def _enter(self, phase: LearnerPhase) -> float:
        now_s = trio.current_time()
        self._progress.timeline.enter(phase, now_s)
        return now_s


def _rollouts(batch: TrainingBatch) -> list[AcceptedRollout]:
    return [rollout for group in batch.groups for rollout in group.rollouts]


def to_train(groups: Iterable[CompleteGroup]) -> list[TrainGroup]:
    """Return groups in the form in which the trainer takes them."""
    return [
        TrainGroup(
            group_id=group.group_id,
            prompt_tokens=group.prompt_tokens,
            rollouts=tuple(
                TrainRollout(
                    tokens=rollout.tokens,
                    logprobs=rollout.logprobs,
                    version=rollout.version,
                    reward=rollout.reward,
                    is_truncated=rollout.is_truncated,
                    peer_id=rollout.peer,
                )
                for rollout in group.rollouts
            ),
        )
        for group in groups
    ]


def _named(histogram: dict[int, int]) -> dict[str, int]:
    return {str(lag): count for lag, count in sorted(histogram.items())}
