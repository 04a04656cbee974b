"""What is reported of a batch's tokens; by the names of ``docs/metrics.md``.

Letters in names are shapes: N completion tokens, S samples.
"""

from dataclasses import dataclass

import torch

from learner.config.objective import Objective
from learner.trainer.objective import (
    Given,
    importance_ratios,
    is_left_out,
    is_masked,
    kl_penalties,
    policy_ratios,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFigures:
    """What is known of each token once gradients have been computed; nothing carries one."""

    policy_N: torch.Tensor
    """As of the gradient that the token was in."""
    given: Given
    entropy_N: torch.Tensor
    """Of the policy's distribution at the token."""


def token_metrics(tokens: TokenFigures, objective: Objective) -> dict[str, float]:
    """Return means over the tokens that were trained on."""
    columns = _columns(tokens, objective)
    given = tokens.given
    metrics = {
        "ratio_mean": columns["ratio"].mean(),
        **_of(columns),
        "importance_max": columns["importance"].max(),
        "drift_max": columns["drift"].max(),
        "entropy": tokens.entropy_N.mean(),
    }
    if given.reference_N is not None:
        penalty_N = kl_penalties(tokens.policy_N, given.reference_N)
        metrics["kl_reference"] = penalty_N.mean()
    return {name: float(value) for name, value in metrics.items()}


def metrics_by_staleness(
    tokens: TokenFigures, staleness_S: torch.Tensor, objective: Objective
) -> dict[int, dict[str, float]]:
    """Return what depends on who sampled, for the tokens of each staleness.

    Args:
        tokens: all of them.
        staleness_S: updates made since each sample's version.
        objective: what they were trained by.
    """
    columns = _columns(tokens, objective)
    staleness_N = staleness_S[tokens.given.sample_N]
    found: dict[int, dict[str, float]] = {}
    for staleness in staleness_S.unique().tolist():
        is_such_N = staleness_N == staleness
        if not bool(is_such_N.any()):
            continue
        of_it = _of({name: column_N[is_such_N] for name, column_N in columns.items()})
        found[staleness] = {
            "num_samples": int((staleness_S == staleness).sum()),
            "num_tokens": int(is_such_N.sum()),
            **{name: float(value) for name, value in of_it.items()},
        }
    return found


def _columns(tokens: TokenFigures, objective: Objective) -> dict[str, torch.Tensor]:
    given = tokens.given
    ratio_N = policy_ratios(tokens.policy_N, given, objective)
    importance_N = importance_ratios(given, objective.importance_level)
    # Where the clip is what the gradient stops at: the other side of it is never chosen.
    clipped_high_N = (ratio_N > 1 + objective.clip_high) & (given.advantages_N > 0)
    clipped_low_N = (ratio_N < 1 - objective.clip_low) & (given.advantages_N < 0)
    is_dual_clipped_N = (ratio_N > objective.dual_clip) & (given.advantages_N < 0)
    is_truncated_N = importance_N > objective.importance_cap
    if objective.importance != "decoupled":
        is_truncated_N = torch.zeros_like(is_truncated_N)
    return {
        "ratio": ratio_N,
        "clipped_high": clipped_high_N.to(ratio_N.dtype),
        "clipped_low": clipped_low_N.to(ratio_N.dtype),
        "importance": importance_N,
        "truncated": is_truncated_N.to(ratio_N.dtype),
        "masked": is_masked(given, objective).to(ratio_N.dtype),
        "left_out": is_left_out(tokens.policy_N, given, objective).to(ratio_N.dtype),
        "dual_clipped": is_dual_clipped_N.to(ratio_N.dtype),
        "kl": kl_penalties(given.behaviour_N, given.prox_N),
        "drift": (given.prox_N - given.behaviour_N).abs(),
    }


def _of(columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    importance_N = columns["importance"]
    return {
        "clipped_share": columns["clipped_low"].mean() + columns["clipped_high"].mean(),
        "clipped_low_share": columns["clipped_low"].mean(),
        "clipped_high_share": columns["clipped_high"].mean(),
        "importance_mean": importance_N.mean(),
        "importance_truncated_share": columns["truncated"].mean(),
        "masked_share": columns["masked"].mean(),
        "left_out_share": columns["left_out"].mean(),
        "dual_clipped_share": columns["dual_clipped"].mean(),
        "effective_sample_share": importance_N.mean().square() / importance_N.square().mean(),
        "kl_behaviour_prox": columns["kl"].mean(),
        "drift_mean": columns["drift"].mean(),
    }
