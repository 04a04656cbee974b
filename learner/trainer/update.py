"""What happens to a batch: micro-batches, losses, metrics, optimizer steps.

With one optimizer step per update, the policy that is optimised *is* the proximal one when
the gradient is taken: its log-probabilities, detached, are those of the weights at the start
of the update, and one forward pass gives both. With several, a pass without gradients comes
first, and the policy moves away from where it was.

Where parameters live, and how processes agree, is not decided here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch

from learner.config import TrainerConfig
from learner.config.objective import objective_of
from learner.trainer.batch import PackedBatch
from learner.trainer.gradient import add_gradient, note_logprobs
from learner.trainer.messages import SampledBy
from learner.trainer.optimizer import Stepped, apply_gradients
from learner.trainer.policy import Policy
from learner.trainer.prefix_packing import MicroBatch, PackedSample, make_micro_batches
from learner.trainer.rank_batches import spread_over_ranks
from learner.trainer.token_metrics import metrics_by_staleness, token_metrics
from learner.trainer.tokens import Tokens, drift_by_peer, sampled_by

OnProgress = Callable[[str, float, float], None]
Rounds = list[list[MicroBatch]]
"""One micro-batch per rank, again and again."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What came of a batch."""

    metrics: dict[str, float]
    """By the names of ``docs/metrics.md``."""
    drift_by_peer: dict[str, dict[str, float]]
    by_staleness: dict[int, dict[str, float]]
    sampled_by: dict[str, SampledBy]


def optimize(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: PackedBatch,
    table: TrainerConfig,
    *,
    lr: float,
    reference: Policy | None,
    publish_dtype: torch.dtype,
    on_progress: OnProgress,
) -> UpdateResult:
    """Make the optimizer steps of an update with ``batch``, which has samples.

    If it fails in the first of them, nothing has changed.

    Args:
        policy: what is trained; holds no gradients before or after.
        optimizer: of its parameters.
        batch: what is learned from.
        table: how.
        lr: the learning rate.
        reference: what the KL penalty pulls to.
        publish_dtype: what nodes see of the weights.
        on_progress: told of each micro-batch.
    """
    ranks, objective = policy.ranks, objective_of(table)
    parts = [part for part in _parts(policy, batch, table) if part]
    num_rounds = sum(map(len, parts))
    tokens = Tokens.of(batch, policy.device, has_reference=reference is not None)
    if tokens.prox_N is not None:
        _note_proximal(policy, parts, tokens.prox_N, publish_dtype)
    number = 0
    steps: list[Stepped] = []
    for rounds in parts:
        try:
            with policy.rounded(publish_dtype):
                for micro_batches in rounds:
                    on_progress("micro-batches", number, num_rounds)
                    number += 1
                    micro = micro_batches[ranks.rank]
                    if reference is not None and tokens.reference_N is not None:
                        note_logprobs(reference, micro, tokens.reference_N)
                    add_gradient(policy, micro, tokens, objective)
        except BaseException:
            optimizer.zero_grad(set_to_none=True)
            raise
        steps.append(apply_gradients(optimizer, lr=lr, max_norm=table.max_grad_norm, ranks=ranks))
    ranks.add_up(*tokens.found())
    trained = tokens.trained()
    metrics = _step_metrics(steps, parts, lr=lr, loss=float(tokens.loss))
    staleness_S = torch.tensor(batch.staleness, device=policy.device)
    return UpdateResult(
        metrics | token_metrics(trained, objective),
        drift_by_peer(batch, trained),
        metrics_by_staleness(trained, staleness_S, objective),
        sampled_by(batch, tokens, trained, objective),
    )


def _note_proximal(
    policy: Policy, parts: list[Rounds], prox_N: torch.Tensor, publish_dtype: torch.dtype
) -> None:
    """Fill ``prox_N`` with the log-probabilities of the weights at the start of the update."""
    with policy.rounded(publish_dtype):
        for micro_batches in (made for rounds in parts for made in rounds):
            note_logprobs(policy, micro_batches[policy.ranks.rank], prox_N)
    policy.ranks.add_up(prox_N)


def _step_metrics(
    steps: list[Stepped], parts: list[Rounds], *, lr: float, loss: float
) -> dict[str, float]:
    """Return what the optimizer steps did, and what was computed for them."""
    made = [micro for rounds in parts for micro_batches in rounds for micro in micro_batches]
    return {
        "loss": loss / len(steps),
        "grad_norm": fmean(stepped.grad_norm for stepped in steps),
        "learning_rate": lr,
        "is_not_finite": float(not all(stepped.is_applied for stepped in steps)),
        "num_optimizer_steps": sum(stepped.is_applied for stepped in steps),
        "num_tokens_computed": sum(micro.num_tokens for micro in made),
        "num_tokens_longest": max(micro.num_tokens for micro in made),
    }


def _parts(policy: Policy, batch: PackedBatch, table: TrainerConfig) -> list[Rounds]:
    """Return what goes through the model for each optimizer step."""
    found: list[Rounds] = []
    for number in range(batch.num_minibatches):
        samples = [
            sample
            for sample, minibatch in zip(batch.samples, batch.minibatch, strict=True)
            if minibatch == number
        ]

        def cut(max_tokens: int, samples: list[PackedSample] = samples) -> list[MicroBatch]:
            return make_micro_batches(
                samples,
                max_tokens=max_tokens,
                hidden_size=policy.hidden_size,
                share_prefixes=policy.shares_prefixes,
            )

        found.append(
            spread_over_ranks(cut, max_tokens=table.micro_batch_tokens, num_ranks=policy.ranks.size)
        )
    return found
