"""What happens to a batch: micro-batches, losses, metrics, optimizer steps.

Where parameters live, and how processes agree, is not decided here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from learner.config import TrainerTable
from learner.training.batch import Batch
from learner.training.batching import make_micro_batches
from learner.training.gradient import add_gradient
from learner.training.objective import token_metrics
from learner.training.optimizer import apply_gradients, learning_rate
from learner.training.policy import Policy
from learner.training.rounding import rounded
from learner.training.tokens import Tokens, drift_by_peer

OnProgress = Callable[[str, float, float], None]


@dataclass(frozen=True, slots=True)
class Optimized:
    """What came of a batch."""

    metrics: dict[str, float]
    """By the names of ``docs/metrics.md``."""
    drift_by_peer: dict[str, float]


def optimize(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    table: TrainerTable,
    *,
    step: int,
    reference: Policy | None,
    publish_dtype: torch.dtype,
    on_progress: OnProgress,
) -> Optimized:
    """Make one optimizer step with ``batch``, which has samples.

    Args:
        policy: what is trained; holds no gradients before or after.
        optimizer: of its parameters.
        batch: what is learned from.
        table: how.
        step: updates done before this one.
        reference: what the KL penalty pulls to.
        publish_dtype: what nodes see of the weights.
        on_progress: told of each micro-batch.
    """
    micro_batches = make_micro_batches(
        batch.samples,
        max_tokens=table.micro_batch_tokens,
        hidden_size=policy.hidden_size,
        share_prefixes=policy.shares_prefixes,
    )
    tokens = Tokens.of(batch, policy.device, has_reference=reference is not None)
    try:
        with rounded(policy.model.parameters(), publish_dtype):
            for number, micro in enumerate(micro_batches):
                on_progress("micro-batches", number, len(micro_batches))
                add_gradient(policy, micro, tokens, table, reference=reference)
    except BaseException:
        optimizer.zero_grad(set_to_none=True)
        raise
    lr = learning_rate(step, table)
    stepped = apply_gradients(optimizer, lr=lr, max_norm=table.max_grad_norm)
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
    return Optimized(metrics, drift_by_peer(batch, tokens))
