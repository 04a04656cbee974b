"""The objective: functions of tensors, without state.

N, in names, is a shape: completion tokens, of a micro-batch or a batch, one after
the other. There is no padding among them, so nothing needs a mask.

Three policies give each token a log-probability, all at the temperature of
sampling:

- ``behaviour``: sampled it, on a node, up to S versions ago;
- ``prox``: the weights at the start of the update;
- ``policy``: the weights being optimised.

The gradient is that of, per token,

    min(prox / behaviour, cap)  x  min(r A, clip(r, 1 - low, 1 + high) A),   r = policy / prox

of which the first factor is a constant: the truncated importance weight of
decoupled PPO, which corrects for staleness and for engines that compute
differently. The second is PPO's surrogate, with asymmetric clips as in DAPO.
"""

from dataclasses import dataclass
from typing import Final

import torch

_MAX_LOG_RATIO: Final = 20.0
"""exp() beyond it would only produce infinities; far outside any clip or cap."""


def importance_weights(
    prox_N: torch.Tensor,
    behaviour_N: torch.Tensor,
) -> torch.Tensor:
    """Return prox / behaviour per token, without gradient."""
    return (prox_N - behaviour_N).detach().clamp(max=_MAX_LOG_RATIO).exp()


def surrogate_losses(
    policy_N: torch.Tensor,
    prox_N: torch.Tensor,
    behaviour_N: torch.Tensor,
    advantages_N: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    importance_cap: float,
) -> torch.Tensor:
    """Return the loss of each token, to be minimised.

    Args:
        policy_N: the only one that a gradient flows into.
        prox_N: log-probabilities under the weights at the start of the update.
        behaviour_N: log-probabilities under what sampled the tokens; finite.
        advantages_N: that of its sample, for each token.
        clip_low: the ratio policy / prox is clipped below at 1 - clip_low.
        clip_high: and above at 1 + clip_high.
        importance_cap: the ratio prox / behaviour is cut off here.
    """
    ratio_N = _ratio(policy_N, prox_N)
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    surrogate_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    weight_N = importance_weights(prox_N, behaviour_N).clamp(max=importance_cap)
    return -weight_N * surrogate_N


def kl_penalties(
    policy_N: torch.Tensor,
    reference_N: torch.Tensor,
) -> torch.Tensor:
    """Return Schulman's k3 estimate of KL(policy, reference) per token; at least 0."""
    difference_N = (reference_N - policy_N).clamp(max=_MAX_LOG_RATIO)
    return difference_N.expm1() - difference_N


def _ratio(policy_N: torch.Tensor, prox_N: torch.Tensor) -> torch.Tensor:
    log_ratio_N = policy_N - prox_N.detach()
    return log_ratio_N.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is known of each token once the gradient has been computed; nothing carries one."""

    policy_N: torch.Tensor
    prox_N: torch.Tensor
    behaviour_N: torch.Tensor
    advantages_N: torch.Tensor
    entropy_N: torch.Tensor
    """Of the policy's distribution at the token."""
    reference_N: torch.Tensor | None = None


def token_metrics(
    tokens: Trained, *, clip_low: float, clip_high: float, importance_cap: float
) -> dict[str, float]:
    """Return means over the tokens that were trained on, by the names of ``docs/metrics.md``."""
    ratio_N = _ratio(tokens.policy_N, tokens.prox_N)
    # Where the clip is what the gradient stops at: the other side of it is never chosen.
    above_N = (ratio_N > 1 + clip_high) & (tokens.advantages_N > 0)
    below_N = (ratio_N < 1 - clip_low) & (tokens.advantages_N < 0)
    weight_N = importance_weights(tokens.prox_N, tokens.behaviour_N)
    drift_N = tokens.prox_N - tokens.behaviour_N
    metrics = {
        "ratio_mean": ratio_N.mean(),
        "clipped_share": (above_N | below_N).float().mean(),
        "importance_mean": weight_N.mean(),
        "importance_max": weight_N.max(),
        "importance_truncated_share": (weight_N > importance_cap).float().mean(),
        "effective_sample_share": weight_N.mean().square() / weight_N.square().mean(),
        "kl_behaviour_prox": kl_penalties(tokens.behaviour_N, tokens.prox_N).mean(),
        "drift_mean": drift_N.abs().mean(),
        "drift_max": drift_N.abs().max(),
        "entropy": tokens.entropy_N.mean(),
    }
    if tokens.reference_N is not None:
        metrics["kl_reference"] = kl_penalties(tokens.policy_N, tokens.reference_N).mean()
    return {name: float(value) for name, value in metrics.items()}
