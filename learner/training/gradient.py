"""The gradient of one micro-batch, added to what the parameters hold.

The vocabulary makes logits by far the largest tensors. They are made, used and dropped
a few positions at a time: each piece leaves its gradient with the last layer's weights
and with the features, which then carry it through the rest of the model at once.

Letters in names are shapes, as in :mod:`learner.training.batching`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from learner.config.objective import Objective
from learner.training.batching import MicroBatch
from learner.training.objective import token_losses
from learner.training.policy import Policy
from learner.training.tokens import Tokens

_FLAT_POWER: Final = 0.8
"""A flattened policy is proportional to this power of the policy. A lower one would tell unlikely
tokens sooner, but not in a large vocabulary: its long tail would take all the probability."""
_SHARP_POWER: Final = 2.0
"""The same of a sharpened one: as sampled at half the temperature."""
_MAX_LOGITS: Final = 1 << 25
"""Logits held at once: 128 MiB, a few times over."""


def add_gradient(policy: Policy, micro: MicroBatch, tokens: Tokens, objective: Objective) -> None:
    """Add the gradient of the tokens of ``micro``, and note in ``tokens`` what came out."""
    features_PH = policy.features(micro)
    leaf_PH = features_PH.detach().requires_grad_()
    pieces = list(_pieces(policy, micro))
    gradients_M = None
    if not objective.is_by_token and len(pieces) > 1:
        gradients_M = _gradients_of_loss(policy, leaf_PH.detach(), pieces, tokens, objective)
    begin = 0
    for piece in pieces:
        logits_PV = policy.logits(leaf_PH[piece.start : piece.stop])
        norms_P = logits_PV.logsumexp(-1)
        policy_M = logits_PV[piece.at_M, piece.target_M] - norms_P[piece.at_M]
        tokens.policy_N[piece.index_M] = policy_M.detach()
        entropy_P = _entropies(logits_PV.detach(), norms_P.detach())
        tokens.entropy_N[piece.index_M] = entropy_P[piece.at_M]
        tokens.flat_N[piece.index_M] = _logprobs_of_power(logits_PV.detach(), _FLAT_POWER, piece)
        tokens.sharp_N[piece.index_M] = _logprobs_of_power(logits_PV.detach(), _SHARP_POWER, piece)
        if gradients_M is None:
            loss = _loss(policy_M, piece.index_M, tokens, objective)
            loss.backward()
            tokens.loss += loss.detach()
        else:
            end = begin + len(piece.index_M)
            policy_M.backward(gradients_M[begin:end])
            begin = end
    features_PH.backward(leaf_PH.grad)


@torch.no_grad()
def note_logprobs(policy: Policy, micro: MicroBatch, logprobs_N: torch.Tensor) -> None:
    """Fill in the log-probabilities of the tokens of ``micro``."""
    features_PH = policy.features(micro)
    for piece in _pieces(policy, micro):
        logprobs_N[piece.index_M] = _logprobs(policy, features_PH, piece)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Positions whose logits are held at once, and the tokens that they predict."""

    start: int
    stop: int
    at_M: torch.Tensor
    """Positions, counted from ``start``."""
    target_M: torch.Tensor
    index_M: torch.Tensor


def _pieces(policy: Policy, micro: MicroBatch) -> Iterator[_Piece]:
    num_positions = len(micro.source_P)
    num_at_once = max(1, _MAX_LOGITS // policy.vocab_size)
    for start in range(0, num_positions, num_at_once):
        stop = min(start + num_at_once, num_positions)
        begin, end = np.searchsorted(micro.source_M, [start, stop])
        yield _Piece(
            start,
            stop,
            policy.tensor(micro.source_M[begin:end] - start),
            policy.tensor(micro.target_M[begin:end]),
            policy.tensor(micro.index_M[begin:end]),
        )


def _logprobs(policy: Policy, features_PH: torch.Tensor, piece: _Piece) -> torch.Tensor:
    logits_PV = policy.logits(features_PH[piece.start : piece.stop])
    return logits_PV[piece.at_M, piece.target_M] - logits_PV.logsumexp(-1)[piece.at_M]


def _gradients_of_loss(
    policy: Policy,
    features_PH: torch.Tensor,
    pieces: list[_Piece],
    tokens: Tokens,
    objective: Objective,
) -> torch.Tensor:
    """Return the loss's gradient by each log-probability, where pieces cut through samples.

    A ratio of a whole sequence needs all of its log-probabilities before any gradient, so
    logits are made twice.
    """
    with torch.no_grad():
        policy_M = torch.cat([_logprobs(policy, features_PH, piece) for piece in pieces])
    policy_M.requires_grad_()
    index_M = torch.cat([piece.index_M for piece in pieces])
    loss = _loss(policy_M, index_M, tokens, objective)
    (gradients_M,) = torch.autograd.grad(loss, policy_M)
    tokens.loss += loss.detach()
    return gradients_M


def _loss(
    policy_M: torch.Tensor, index_M: torch.Tensor, tokens: Tokens, objective: Objective
) -> torch.Tensor:
    losses_M = token_losses(policy_M, tokens.given(index_M, policy_M), objective)
    return (tokens.weights_N[index_M] * losses_M).sum()


def _logprobs_of_power(logits_PV: torch.Tensor, power: float, piece: _Piece) -> torch.Tensor:
    """Return the tokens' log-probabilities under a policy proportional to a power of this one."""
    power_PV = logits_PV * power
    return power_PV[piece.at_M, piece.target_M] - power_PV.logsumexp(-1)[piece.at_M]


def _entropies(logits_PV: torch.Tensor, norms_P: torch.Tensor) -> torch.Tensor:
    probabilities_PV = (logits_PV - norms_P[:, None]).exp_()
    return norms_P - (probabilities_PV * logits_PV).sum(-1)
