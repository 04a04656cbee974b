"""The trainer: one GRPO update at a time.

There is one optimizer step per batch, so the policy that is optimised *is* the
proximal one when the gradient is taken: its log-probabilities, detached, are
those of the weights at the start of the update, and one forward pass gives both.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from learner.config import TrainerTable
from learner.training.batch import make_batch
from learner.training.checkpoint import copy_state, load_checkpoint
from learner.training.folders import new_folder
from learner.training.hardware import autocast_dtype, device_of, resident_bytes
from learner.training.messages import Start, Started, TrainGroup, Updated
from learner.training.optimize import OnProgress, optimize
from learner.training.optimizer import make_optimizer
from learner.training.policy import Policy, load_model
from learner.training.weights import model_tensors, write_weights


class Trainer:
    """Model, optimizer and step count."""

    def __init__(self, start: Start, table: TrainerTable) -> None:
        torch.manual_seed(start.seed)
        self._table = table
        self._max_new_tokens = start.max_new_tokens
        self._publish_dtype: torch.dtype = getattr(torch, table.publish_dtype)
        folder = Path(start.model_dir)
        device = device_of(table.device)
        autocast = autocast_dtype(table.compute_dtype, device)

        def load() -> Policy:
            model = load_model(folder, device=device)
            return Policy(model, temperature=start.temperature, autocast=autocast)

        self._policy = load()
        self._reference = load() if table.kl_coefficient else None
        if self._reference is not None:
            self._reference.model.requires_grad_(False)
        self._model = self._policy.model
        self._optimizer = make_optimizer(self._model.named_parameters(), table)
        self.step = 0
        """Updates done."""
        if start.checkpoint_dir is not None:
            self.step = load_checkpoint(Path(start.checkpoint_dir), self._model, self._optimizer)

    def started(self) -> Started:
        """Describe the trainer."""
        return Started(
            step=self.step,
            num_parameters=sum(parameter.numel() for parameter in self._model.parameters()),
            vocab_size=self._policy.vocab_size,
            rss_bytes=resident_bytes(),
        )

    def update(self, step: int, groups: Sequence[TrainGroup], on_progress: OnProgress) -> Updated:
        """Make one optimizer step with ``groups``.

        Raises:
            ValueError: ``step`` is not the next one, or the groups can't be trained on. Nothing
                has changed then.
        """
        if step != self.step:
            raise ValueError(f"update from step {step} was asked for, but {self.step} are done")
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        batch = make_batch(
            groups,
            self._table,
            vocab_size=self._policy.vocab_size,
            max_new_tokens=self._max_new_tokens,
        )
        metrics: dict[str, float] = dict(batch.metrics)
        drift_by_peer: dict[str, float] = {}
        metrics |= {"is_without_signal": float(not batch.samples), "is_not_finite": 0.0}
        if batch.samples:
            optimized = optimize(
                self._policy,
                self._optimizer,
                batch,
                self._table,
                step=step,
                reference=self._reference,
                publish_dtype=self._publish_dtype,
                on_progress=on_progress,
            )
            metrics |= optimized.metrics
            drift_by_peer = optimized.drift_by_peer
        self.step += 1
        metrics["update_s"] = time.perf_counter() - started_s
        metrics["update_cpu_s"] = time.process_time() - started_cpu_s
        metrics["trainer_rss_bytes"] = resident_bytes()
        return Updated(step=self.step, metrics=metrics, drift_by_peer=drift_by_peer)

    def write_weights(self, folder: Path) -> list[str]:
        """Write the present weights into the new ``folder``; return the files' names in order."""
        with new_folder(folder) as partial:
            return write_weights(partial, model_tensors(self._model), self._publish_dtype)

    def copy_state(self) -> Callable[[Path], None]:
        """Copy all state, and return what writes the copy into a new folder, in any thread."""
        return copy_state(self._model, self._optimizer, step=self.step)
