"""A batch's completion tokens on the device, and what forward passes find out of them.

Letters in names are shapes: N completion tokens of a batch, M of a part of it, S samples.
"""

from dataclasses import dataclass

import numpy as np
import torch

from learner.config.objective import Objective
from learner.training.batch import Batch
from learner.training.messages import SampledBy
from learner.training.objective import Given, is_left_out, kl_penalties
from learner.training.token_metrics import Trained


@dataclass(slots=True)
class Tokens:
    """Columns with one value per completion token."""

    behaviour_N: torch.Tensor
    advantages_N: torch.Tensor
    weights_N: torch.Tensor
    sample_N: torch.Tensor
    """Which of S samples."""
    lengths_S: torch.Tensor
    policy_N: torch.Tensor
    """As of the gradient that the token was in."""
    entropy_N: torch.Tensor
    flat_N: torch.Tensor
    """Log-probabilities under a flattened copy of that policy,"""
    sharp_N: torch.Tensor
    """and under a sharpened one."""
    prox_N: torch.Tensor | None
    """Filled in before the first of several optimizer steps; with one, it is the policy."""
    reference_N: torch.Tensor | None
    loss: torch.Tensor
    """Sum so far."""

    @classmethod
    def of(cls, batch: Batch, device: torch.device, *, has_reference: bool) -> "Tokens":
        """Copy a batch to ``device``."""
        behaviour_N = torch.from_numpy(batch.behaviour_N).to(device)
        lengths_S = np.asarray([sample.num_completion for sample in batch.samples], np.int64)
        is_one_step = batch.num_minibatches == 1
        return cls(
            behaviour_N=behaviour_N,
            advantages_N=torch.from_numpy(batch.advantages_N).to(device),
            weights_N=torch.from_numpy(batch.weights_N).to(device),
            sample_N=torch.from_numpy(np.repeat(np.arange(len(lengths_S)), lengths_S)).to(device),
            lengths_S=torch.from_numpy(lengths_S).to(device),
            policy_N=torch.zeros_like(behaviour_N),
            entropy_N=torch.zeros_like(behaviour_N),
            flat_N=torch.zeros_like(behaviour_N),
            sharp_N=torch.zeros_like(behaviour_N),
            prox_N=None if is_one_step else torch.zeros_like(behaviour_N),
            reference_N=torch.zeros_like(behaviour_N) if has_reference else None,
            loss=torch.zeros((), device=device),
        )

    def found(self) -> list[torch.Tensor]:
        """Return what gradients have filled in, each value by one rank; 0 with the others."""
        columns = [self.policy_N, self.entropy_N, self.flat_N, self.sharp_N, self.loss]
        return columns if self.reference_N is None else [*columns, self.reference_N]

    def given(self, index_M: torch.Tensor, policy_M: torch.Tensor) -> Given:
        """Return what the loss of some tokens depends on, besides the policy as it is now."""
        return Given(
            prox_N=policy_M.detach() if self.prox_N is None else self.prox_N[index_M],
            behaviour_N=self.behaviour_N[index_M],
            advantages_N=self.advantages_N[index_M],
            sample_N=self.sample_N[index_M],
            lengths_S=self.lengths_S,
            reference_N=None if self.reference_N is None else self.reference_N[index_M],
        )

    def trained(self) -> Trained:
        """Return what the metrics are computed of."""
        return Trained(
            policy_N=self.policy_N,
            given=Given(
                prox_N=self.policy_N if self.prox_N is None else self.prox_N,
                behaviour_N=self.behaviour_N,
                advantages_N=self.advantages_N,
                sample_N=self.sample_N,
                lengths_S=self.lengths_S,
                reference_N=self.reference_N,
            ),
            entropy_N=self.entropy_N,
        )


def sampled_by(
    batch: Batch, tokens: Tokens, trained: Trained, objective: Objective
) -> dict[str, SampledBy]:
    """Return what each node's rollouts show of how they were sampled."""
    lengths = [sample.num_completion for sample in batch.samples]
    is_checked_N = np.repeat(np.asarray(batch.is_checked, np.float64), lengths)
    is_out_N = is_left_out(trained.policy_N, trained.given, objective).cpu().numpy()
    unlikely_N, likely_N = (
        (q_N - tokens.behaviour_N).double().cpu().numpy() * is_checked_N
        for q_N in (tokens.flat_N, tokens.sharp_N)
    )
    found: dict[str, SampledBy] = {}
    for sample, peer in zip(batch.samples, batch.peers, strict=True):
        before = found.get(peer, SampledBy(0, 0, 0.0, 0.0))
        part = slice(sample.first, sample.first + sample.num_completion)
        found[peer] = SampledBy(
            before.num_rollouts + 1,
            before.num_left_out + int(is_out_N[sample.first]),
            before.unlikely_evidence + float(unlikely_N[part].sum()),
            before.likely_evidence + float(likely_N[part].sum()),
        )
    return found


def drift_by_peer(batch: Batch, trained: Trained) -> dict[str, dict[str, float]]:
    """Return how far the logprobs that each node told are from those recomputed.

    Of the tokens that have a gradient: how many, the mean absolute difference, and the mean
    estimate of the divergence, both as in :mod:`learner.training.token_metrics`.
    """
    given = trained.given
    drift_N = (given.prox_N - given.behaviour_N).abs().cpu().numpy()
    kl_N = kl_penalties(given.behaviour_N, given.prox_N).cpu().numpy()
    parts: dict[str, list[slice]] = {}
    for sample, peer in zip(batch.samples, batch.peers, strict=True):
        part = slice(sample.first, sample.first + sample.num_completion)
        parts.setdefault(peer, []).append(part)
    found: dict[str, dict[str, float]] = {}
    for peer, theirs in parts.items():
        drift_M = np.concatenate([drift_N[part] for part in theirs])
        kl_M = np.concatenate([kl_N[part] for part in theirs])
        found[peer] = {
            "num_tokens": drift_M.size,
            "drift_mean": float(drift_M.mean(dtype=np.float64)),
            "kl_behaviour_prox": float(kl_M.mean(dtype=np.float64)),
        }
    return found
