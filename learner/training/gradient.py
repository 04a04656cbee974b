"""The gradient of one micro-batch, added to what the parameters hold.

The vocabulary makes logits by far the largest tensors. They are made, used and dropped
a few positions at a time: each piece leaves its gradient with the last layer's weights
and with the features, which then carry it through the rest of the model at once.

Letters in names are shapes, as in :mod:`learner.training.batching`.
"""

from typing import Final

import numpy as np
import torch

from learner.config import TrainerTable
from learner.training.batching import MicroBatch
from learner.training.objective import kl_penalties, surrogate_losses
from learner.training.policy import Policy
from learner.training.tokens import Tokens

_MAX_LOGITS: Final = 1 << 25
"""Logits held at once: 128 MiB, a few times over."""


def add_gradient(
    policy: Policy,
    micro: MicroBatch,
    tokens: Tokens,
    table: TrainerTable,
    *,
    reference: Policy | None,
) -> None:
    """Add the gradient of the tokens of ``micro``, and note in ``tokens`` what came out."""
    features_PH = policy.features(micro)
    leaf_PH = features_PH.detach().requires_grad_()
    reference_PH = None
    if reference is not None:
        with torch.no_grad():
            reference_PH = reference.features(micro)
    num_positions = len(micro.source_P)
    num_at_once = max(1, _MAX_LOGITS // policy.vocab_size)
    for start in range(0, num_positions, num_at_once):
        stop = min(start + num_at_once, num_positions)
        begin, end = np.searchsorted(micro.source_M, [start, stop])
        at_M = policy.tensor(micro.source_M[begin:end] - start)
        target_M = policy.tensor(micro.target_M[begin:end])
        index_M = policy.tensor(micro.index_M[begin:end])
        logits_PV = policy.logits(leaf_PH[start:stop])
        norms_P = logits_PV.logsumexp(-1)
        policy_M = logits_PV[at_M, target_M] - norms_P[at_M]
        tokens.policy_N[index_M] = policy_M.detach()
        tokens.entropy_N[index_M] = _entropies(logits_PV.detach(), norms_P.detach())[at_M]
        losses_M = surrogate_losses(
            policy_M,
            policy_M.detach(),
            tokens.behaviour_N[index_M],
            tokens.advantages_N[index_M],
            clip_low=table.clip_low,
            clip_high=table.clip_high,
            importance_cap=table.importance_cap,
        )
        if reference is not None and reference_PH is not None:
            with torch.no_grad():
                reference_logits_PV = reference.logits(reference_PH[start:stop])
                reference_M = reference_logits_PV.log_softmax(-1)[at_M, target_M]
            assert tokens.reference_N is not None  # noqa: S101 - made together
            tokens.reference_N[index_M] = reference_M
            losses_M = losses_M + table.kl_coefficient * kl_penalties(policy_M, reference_M)
        loss = (tokens.weights_N[index_M] * losses_M).sum()
        loss.backward()
        tokens.loss += loss.detach()
    features_PH.backward(leaf_PH.grad)


def _entropies(logits_PV: torch.Tensor, norms_P: torch.Tensor) -> torch.Tensor:
    probabilities_PV = (logits_PV - norms_P[:, None]).exp_()
    return norms_P - (probabilities_PV * logits_PV).sum(-1)
