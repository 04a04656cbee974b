"""A batch's completion tokens on the device, and what forward passes find out of them.

N, in names, is a shape, as in :mod:`learner.training.batching`.
"""

from dataclasses import dataclass

import numpy as np
import torch

from learner.training.batch import Batch
from learner.training.objective import Trained


@dataclass(slots=True)
class Tokens:
    """Columns with one value per completion token."""

    behaviour_N: torch.Tensor
    advantages_N: torch.Tensor
    weights_N: torch.Tensor
    policy_N: torch.Tensor
    entropy_N: torch.Tensor
    reference_N: torch.Tensor | None
    loss: torch.Tensor
    """Sum so far."""

    @classmethod
    def of(cls, batch: Batch, device: torch.device, *, has_reference: bool) -> "Tokens":
        """Copy a batch to ``device``."""
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
        """Return what the metrics are computed of."""
        return Trained(
            policy_N=self.policy_N,
            prox_N=self.policy_N,
            behaviour_N=self.behaviour_N,
            advantages_N=self.advantages_N,
            entropy_N=self.entropy_N,
            reference_N=self.reference_N,
        )


def drift_by_peer(batch: Batch, tokens: Tokens) -> dict[str, float]:
    """Return the mean absolute difference of behaviour and recomputed logprobs, per node."""
    drift_N = (tokens.policy_N - tokens.behaviour_N).abs().cpu().numpy()
    sums: dict[str, tuple[float, int]] = {}
    for sample, peer in zip(batch.samples, batch.peers, strict=True):
        total, count = sums.get(peer, (0.0, 0))
        part = drift_N[sample.first : sample.first + sample.num_completion]
        sums[peer] = total + float(part.sum(dtype=np.float64)), count + part.size
    return {peer: total / count for peer, (total, count) in sums.items()}
