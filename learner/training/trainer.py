"""The trainer: one GRPO update at a time.

There is one optimizer step per batch, so the policy that is optimised *is* the
proximal one when the gradient is taken: its log-probabilities, detached, are
those of the weights at the start of the update, and one forward pass gives both.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from learner.config import TrainerTable
from learner.training.batch import Batch, make_batch
from learner.training.batching import MicroBatch, make_micro_batches
from learner.training.checkpoint import load_checkpoint, save_checkpoint
from learner.training.folders import new_folder
from learner.training.hardware import autocast_dtype, device_of, resident_bytes
from learner.training.messages import Start, Started, TrainGroup, Updated
from learner.training.objective import Trained, kl_penalties, surrogate_losses, token_metrics
from learner.training.optimizer import apply_gradients, learning_rate, make_optimizer
from learner.training.policy import Policy, load_model
from learner.training.rounding import rounded
from learner.training.weights import model_tensors, write_weights

OnProgress = Callable[[str, float, float], None]

_MAX_LOGITS: Final = 1 << 25
"""Logits held at once: 128 MiB, a few times over."""


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
            found, drift_by_peer = self._optimize(batch, on_progress)
            metrics |= found
        self.step += 1
        metrics["update_s"] = time.perf_counter() - started_s
        metrics["update_cpu_s"] = time.process_time() - started_cpu_s
        metrics["trainer_rss_bytes"] = resident_bytes()
        return Updated(step=self.step, metrics=metrics, drift_by_peer=drift_by_peer)

    def write_weights(self, folder: Path) -> list[str]:
        """Write the present weights into the new ``folder``; return the files' names in order."""
        with new_folder(folder) as partial:
            return write_weights(partial, model_tensors(self._model), self._publish_dtype)

    def save_checkpoint(self, folder: Path) -> None:
        """Write all state into the new ``folder``."""
        save_checkpoint(folder, self._model, self._optimizer, step=self.step)

    def _optimize(
        self, batch: Batch, on_progress: OnProgress
    ) -> tuple[dict[str, float], dict[str, float]]:
        table = self._table
        micro_batches = make_micro_batches(
            batch.samples,
            max_tokens=table.micro_batch_tokens,
            hidden_size=self._policy.hidden_size,
            share_prefixes=self._policy.shares_prefixes,
        )
        tokens = _Tokens.of(batch, self._policy.device, has_reference=bool(self._reference))
        try:
            with rounded(self._model.parameters(), self._publish_dtype):
                for number, micro in enumerate(micro_batches):
                    on_progress("micro-batches", number, len(micro_batches))
                    self._accumulate(micro, tokens)
        except BaseException:
            self._optimizer.zero_grad(set_to_none=True)
            raise
        lr = learning_rate(self.step, table)
        stepped = apply_gradients(self._optimizer, lr=lr, max_norm=table.max_grad_norm)
        metrics = {
            "loss": float(tokens.loss),
            "grad_norm": stepped.grad_norm,
            "learning_rate": lr,
            "is_not_finite": float(not stepped.is_applied),
            "num_tokens_computed": sum(micro.num_tokens for micro in micro_batches),
            **token_metrics(
                tokens.trained(),
                clip_low=table.clip_low,
                clip_high=table.clip_high,
                importance_cap=table.importance_cap,
            ),
        }
        return metrics, _drift_by_peer(batch, tokens)

    def _accumulate(self, micro: MicroBatch, tokens: "_Tokens") -> None:
        """Add the gradient of one micro-batch to what the parameters hold.

        The vocabulary makes logits by far the largest tensors. They are made, used and dropped
        a few positions at a time: each piece leaves its gradient with the last layer's weights
        and with the features, which then carry it through the rest of the model at once.
        """
        features_PH = self._policy.features(micro)
        leaf_PH = features_PH.detach().requires_grad_()
        reference_PH = None
        if self._reference is not None:
            with torch.no_grad():
                reference_PH = self._reference.features(micro)
        num_positions = len(micro.source_P)
        num_at_once = max(1, _MAX_LOGITS // self._policy.vocab_size)
        for start in range(0, num_positions, num_at_once):
            stop = min(start + num_at_once, num_positions)
            begin, end = np.searchsorted(micro.source_M, [start, stop])
            at_M = self._policy.tensor(micro.source_M[begin:end] - start)
            target_M = self._policy.tensor(micro.target_M[begin:end])
            index_M = self._policy.tensor(micro.index_M[begin:end])
            logits_PV = self._policy.logits(leaf_PH[start:stop])
            norms_P = logits_PV.logsumexp(-1)
            policy_M = logits_PV[at_M, target_M] - norms_P[at_M]
            tokens.policy_N[index_M] = policy_M.detach()
            tokens.entropy_N[index_M] = _entropies(logits_PV.detach(), norms_P.detach())[at_M]
            losses_M = surrogate_losses(
                policy_M,
                policy_M.detach(),
                tokens.behaviour_N[index_M],
                tokens.advantages_N[index_M],
                clip_low=self._table.clip_low,
                clip_high=self._table.clip_high,
                importance_cap=self._table.importance_cap,
            )
            if self._reference is not None and reference_PH is not None:
                with torch.no_grad():
                    reference_logits_PV = self._reference.logits(reference_PH[start:stop])
                    reference_M = reference_logits_PV.log_softmax(-1)[at_M, target_M]
                assert tokens.reference_N is not None  # noqa: S101 - made together
                tokens.reference_N[index_M] = reference_M
                losses_M = losses_M + self._table.kl_coefficient * kl_penalties(
                    policy_M, reference_M
                )
            loss = (tokens.weights_N[index_M] * losses_M).sum()
            loss.backward()
            tokens.loss += loss.detach()
        features_PH.backward(leaf_PH.grad)


def _entropies(logits_PV: torch.Tensor, norms_P: torch.Tensor) -> torch.Tensor:
    probabilities_PV = (logits_PV - norms_P[:, None]).exp_()
    return norms_P - (probabilities_PV * logits_PV).sum(-1)


@dataclass(slots=True)
class _Tokens:
    """A batch's completion tokens on the device, and what the forward pass finds out of them."""

    behaviour_N: torch.Tensor
    advantages_N: torch.Tensor
    weights_N: torch.Tensor
    policy_N: torch.Tensor
    entropy_N: torch.Tensor
    reference_N: torch.Tensor | None
    loss: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, device: torch.device, *, has_reference: bool) -> "_Tokens":
        behaviour_N = torch.from_numpy(batch.behaviour_N).to(device)
        return cls(
            behaviour_N=behaviour_N,
            advantages_N=torch.from_numpy(batch.advantages_N).to(device),
            weights_N=torch.from_numpy(batch.weights_N).to(device),
            policy_N=torch.zeros_like(behaviour_N),
            entropy_N=torch.zeros_like(behaviour_N),
            reference_N=torch.zeros_like(behaviour_N) if has_reference else None,
            loss=torch.zeros((), device=device),
        )

    def trained(self) -> Trained:
        return Trained(
            policy_N=self.policy_N,
            prox_N=self.policy_N,
            behaviour_N=self.behaviour_N,
            advantages_N=self.advantages_N,
            entropy_N=self.entropy_N,
            reference_N=self.reference_N,
        )


def _drift_by_peer(batch: Batch, tokens: _Tokens) -> dict[str, float]:
    drift_N = (tokens.policy_N - tokens.behaviour_N).abs().cpu().numpy()
    sums: dict[str, tuple[float, int]] = {}
    for sample, peer in zip(batch.samples, batch.peers, strict=True):
        total, count = sums.get(peer, (0.0, 0))
        part = drift_N[sample.first : sample.first + sample.num_completion]
        sums[peer] = total + float(part.sum(dtype=np.float64)), count + part.size
    return {peer: total / count for peer, (total, count) in sums.items()}
