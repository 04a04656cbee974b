"""The trainer: one update at a time; :mod:`learner.training.optimize` has what it does."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from echo2swarm.errors import StoreError
from learner.config import TrainerTable
from learner.training.batch import make_batch
from learner.training.checkpoint import copy_part, copy_state, load_checkpoint
from learner.training.folders import new_folder
from learner.training.hardware import autocast_dtype, device_of, resident_bytes
from learner.training.messages import SampledBy, Start, Started, TrainGroup, Updated
from learner.training.optimize import OnProgress, optimize
from learner.training.optimizer import learning_rate, make_optimizer
from learner.training.policy import PolicyOptions, load_policy
from learner.training.ranks import Ranks, device_of_rank
from learner.training.recompute import checkpoint_activations
from learner.training.weights import model_tensors, write_weights


class Trainer:
    """Model, optimizer and step count."""

    def __init__(self, start: Start, table: TrainerTable, ranks: Ranks | None = None) -> None:
        torch.manual_seed(start.seed)
        self._table = table
        self._max_new_tokens = start.max_new_tokens
        self._publish_dtype: torch.dtype = getattr(torch, table.publish_dtype)
        folder = Path(start.model_dir)
        self._ranks = ranks or Ranks()
        device = device_of_rank(device_of(table.device), self._ranks.rank, self._ranks.size)
        options = PolicyOptions(
            device=device,
            temperature=start.temperature,
            autocast=autocast_dtype(table.compute_dtype, device),
        )
        self._policy = load_policy(folder, options, self._ranks)
        self._reference = (
            load_policy(folder, options, self._ranks) if table.kl_coefficient else None
        )
        if self._reference is not None:
            self._reference.model.requires_grad_(False)
        self._model = self._policy.model
        self._optimizer = make_optimizer(self._model.named_parameters(), table)
        if table.activation_checkpointing:
            checkpoint_activations(self._model)
        self._is_torn = False
        self.step = 0
        """Updates done."""
        if start.checkpoint_dir is not None:
            saved = Path(start.checkpoint_dir)
            with self._ranks.together():
                self.step = load_checkpoint(saved, self._model, self._optimizer, self._ranks)
        self._warmup_from = start.warmup_from
        if start.fresh_optimizer:
            self._optimizer.state.clear()

    def started(self) -> Started:
        """Describe the trainer."""
        return Started(
            step=self.step,
            num_parameters=sum(parameter.numel() for parameter in self._model.parameters()),
            vocab_size=self._policy.vocab_size,
            rss_bytes=resident_bytes(),
        )

    def update(self, step: int, groups: Sequence[TrainGroup], on_progress: OnProgress) -> Updated:
        """Make one update with ``groups``.

        Raises:
            ValueError: ``step`` is not the next one, or the groups can't be trained on. Nothing
                has changed then.
            StoreError: an earlier update failed between two of its optimizer steps.
        """
        self._assert_whole()
        if step != self.step:
            raise ValueError(f"update from step {step} was asked for, but {self.step} are done")
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        batch = make_batch(
            groups,
            self._table,
            step=step,
            vocab_size=self._policy.vocab_size,
            max_new_tokens=self._max_new_tokens,
        )
        metrics: dict[str, float] = dict(batch.metrics)
        drift_by_peer: dict[str, dict[str, float]] = {}
        by_staleness: dict[int, dict[str, float]] = {}
        sampled_by: dict[str, SampledBy] = {}
        metrics |= {"is_without_signal": float(not batch.samples), "is_not_finite": 0.0}
        if batch.samples:
            self._is_torn = batch.num_minibatches > 1
            optimized = optimize(
                self._policy,
                self._optimizer,
                batch,
                self._table,
                lr=learning_rate(step, self._table, warmup_from=self._warmup_from),
                reference=self._reference,
                publish_dtype=self._publish_dtype,
                on_progress=on_progress,
            )
            metrics |= optimized.metrics
            drift_by_peer = optimized.drift_by_peer
            by_staleness = optimized.by_staleness
            sampled_by = optimized.sampled_by
            self._is_torn = False
        self.step += 1
        metrics["update_s"] = time.perf_counter() - started_s
        metrics["update_cpu_s"] = time.process_time() - started_cpu_s
        metrics["trainer_rss_bytes"] = resident_bytes()
        return Updated(
            step=self.step,
            metrics=metrics,
            drift_by_peer=drift_by_peer,
            by_staleness=by_staleness,
            sampled_by=sampled_by,
        )

    def write_weights(self, folder: Path) -> list[str]:
        """Write the present weights into the new ``folder``; return the files' names in order."""
        self._assert_whole()
        ranks = self._ranks
        partial = None
        # One process makes the folder, and renames or removes it.
        with ExitStack() as stack:
            with ranks.together():
                if ranks.is_first:
                    partial = stack.enter_context(new_folder(folder))
            names = write_weights(
                partial, model_tensors(self._model), self._publish_dtype, ranks=ranks
            )
            with ranks.together():
                stack.close()
        return names

    def copy_state(self) -> Callable[[Path], None]:
        """Copy all state, and return what writes the copy into a new folder, in any thread."""
        self._assert_whole()
        return copy_state(self._model, self._optimizer, step=self.step)

    def copy_part(self) -> Callable[[Path], None]:
        """Copy what this rank holds of it, and return what writes that into an open folder."""
        self._assert_whole()
        return copy_part(self._model, self._optimizer, self._ranks)

    def _assert_whole(self) -> None:
        if self._is_torn:
            raise StoreError(
                "an update failed between two of its optimizer steps, so the weights are of no "
                "version; resume the run from its last checkpoint"
            )
