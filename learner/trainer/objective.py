"""The objective: functions of tensors, without state.

N, in names, is a shape: completion tokens, of a micro-batch or a batch, one after
the other. There is no padding among them, so nothing needs a mask. S are the
samples of the whole batch.

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
``docs/objective.md`` says what else the factors can be, and where each comes from.
"""

from dataclasses import dataclass
from typing import Final

import torch

from learner.config.objective import Objective
from learner.config.presets import KlEstimator, Level

_MAX_LOG_RATIO: Final = 20.0
"""exp() beyond it would only produce infinities; far outside any clip or cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the loss of some tokens depends on besides the policy; nothing carries a gradient."""

    prox_N: torch.Tensor
    """Log-probabilities under the weights at the start of the update."""
    behaviour_N: torch.Tensor
    """Log-probabilities under what sampled the tokens; finite."""
    advantages_N: torch.Tensor
    """That of its sample, for each token."""
    sample_N: torch.Tensor
    """Which of S samples each token is of. A sample's tokens are all here, or none of them."""
    lengths_S: torch.Tensor
    """Tokens of each sample."""
    reference_N: torch.Tensor | None = None
    """Log-probabilities under the initial model; only with a KL penalty."""

    def log_ratio(self, of_N: torch.Tensor, to_N: torch.Tensor, level: Level) -> torch.Tensor:
        """Return log(of / to) at each token: its own, or its whole sample's.

        "token": of the token's probabilities; "sequence": of its sample's, the product over
        tokens; "geometric": the geometric mean over its sample's tokens, as in GSPO.
        """
        difference_N = of_N - to_N
        if level == "token":
            return difference_N
        if level == "geometric":
            return self.sequence_means(difference_N)
        return self._sums(difference_N)[self.sample_N]

    def sequence_means(self, values_N: torch.Tensor) -> torch.Tensor:
        """Return at each token the mean over its sample's tokens."""
        return (self._sums(values_N) / self.lengths_S.clamp(min=1))[self.sample_N]

    def _sums(self, values_N: torch.Tensor) -> torch.Tensor:
        sums_S = torch.zeros_like(self.lengths_S, dtype=values_N.dtype)
        return sums_S.index_add(0, self.sample_N, values_N)


def policy_ratios(policy_N: torch.Tensor, given: Given, objective: Objective) -> torch.Tensor:
    """Return the ratio that is clipped.

    Its denominator is the proximal policy; or the behaviour policy, if the two are coupled,
    as in PPO (arXiv:1707.06347) before they were decoupled (arXiv:2110.00641).
    """
    old_N = given.behaviour_N if objective.importance == "coupled" else given.prox_N.detach()
    log_ratio_N = given.log_ratio(policy_N, old_N, objective.ratio_level)
    return log_ratio_N.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def importance_ratios(given: Given, level: Level) -> torch.Tensor:
    """Return prox / behaviour at each token, without gradient, whether it is used or not."""
    log_ratio_N = given.log_ratio(given.prox_N, given.behaviour_N, level).detach()
    return log_ratio_N.clamp(max=_MAX_LOG_RATIO).exp()


def importance_weights(given: Given, objective: Objective) -> torch.Tensor:
    """Return the constant factor of each token's loss.

    Truncated importance sampling, and leaving out what is far off ("masked importance
    sampling", IcePop); sources are in ``docs/objective.md``.
    """
    if objective.importance == "decoupled":
        ratio_N = importance_ratios(given, objective.importance_level)
        weight_N = ratio_N.clamp(max=objective.importance_cap)
    else:
        weight_N = torch.ones_like(given.prox_N)
    return weight_N.masked_fill(is_masked(given, objective), 0.0)


def is_masked(given: Given, objective: Objective) -> torch.Tensor:
    """Return which tokens do not count, since who sampled them is too far from who trains."""
    if not objective.is_masking:
        return torch.zeros_like(given.prox_N, dtype=torch.bool)
    ratio_N = importance_ratios(given, objective.mask_level)
    return (ratio_N < objective.mask_below) | (ratio_N > objective.mask_above)


def is_left_out(policy_N: torch.Tensor, given: Given, objective: Objective) -> torch.Tensor:
    """Return the tokens of sequences that count for nothing, for how they were sampled.

    Off-policy sequence masking of DeepSeek-V3.2 (arXiv:2512.02556, equation 9); and what is far
    off either way, since a node may also tell less than the truth, which weighs its tokens up.
    """
    if not objective.is_masking_sequences:
        return torch.zeros_like(policy_N, dtype=torch.bool)
    policy_N = policy_N.detach()
    mean_N = given.log_ratio(given.behaviour_N, policy_N, "geometric")
    drift_N = given.sequence_means((given.behaviour_N - policy_N).abs())
    is_off_N = (mean_N > objective.off_policy_mask) & (given.advantages_N < 0)
    return is_off_N | (drift_N > objective.max_drift)


def token_losses(policy_N: torch.Tensor, given: Given, objective: Objective) -> torch.Tensor:
    """Return the loss of each token, to be minimised.

    Args:
        policy_N: the only one that a gradient flows into.
        given: all else.
        objective: which one.
    """
    advantages_N = given.advantages_N
    ratio_N = policy_ratios(policy_N, given, objective)
    clipped_N = ratio_N.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    # Dual-clip PPO (Ye et al., arXiv:1912.09729): a positive advantage is clipped before that.
    bounded_N = ratio_N.clamp(max=max(objective.dual_clip, 1 + objective.clip_high))
    surrogate_N = torch.minimum(bounded_N * advantages_N, clipped_N * advantages_N)
    weights_N = importance_weights(given, objective)
    weights_N = weights_N.masked_fill(is_left_out(policy_N, given, objective), 0.0)
    losses_N = -weights_N * surrogate_N
    if given.reference_N is not None:
        penalty_N = kl_penalties(policy_N, given.reference_N, objective.kl_estimator)
        if objective.kl_estimator == "k3_unbiased":
            # DeepSeek-V3.2, arXiv:2512.02556, section 3.1: so the gradient is the divergence's.
            penalty_N = ratio_N * penalty_N
        losses_N = losses_N + objective.kl_coefficient * penalty_N
    return losses_N


def kl_penalties(
    policy_N: torch.Tensor, reference_N: torch.Tensor, estimator: KlEstimator = "k3"
) -> torch.Tensor:
    """Return an estimate of KL(policy, reference) per token; at least 0.

    k2 and k3 of http://joschu.net/blog/kl-approx.html. k1, the plain log ratio, is no penalty:
    the expectation of its gradient is 0.
    """
    difference_N = (reference_N - policy_N).clamp(max=_MAX_LOG_RATIO)
    if estimator == "k2":
        return difference_N.square() / 2
    return difference_N.expm1() - difference_N
