"""AdamW with warm-up and a limit on the gradient; a step that would do harm is not made."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch

from learner.config import TrainerConfig
from learner.trainer.ranks import Ranks
from learner.trainer.sharding import local, total_norm

_EPSILON: Final = 1e-6
"""Against dividing by 0; as in torch.nn.utils.clip_grad_norm_."""


def make_optimizer(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]], table: TrainerConfig
) -> torch.optim.AdamW:
    """Return AdamW for all parameters; only matrices decay."""
    parameters = [parameter for _, parameter in named_parameters if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    others = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": table.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=table.learning_rate,
        betas=(table.beta1, table.beta2),
        fused=True,
    )


def learning_rate(step: int, table: TrainerConfig, *, warmup_from: int = 0) -> float:
    """Return the learning rate of the update that starts after ``step`` updates.

    Args:
        step: of the run.
        table: with the warm-up's length.
        warmup_from: the step at which the optimizer was new: its averages are as poor then as
            at the start of a run.
    """
    num_made = max(0, step - warmup_from)
    return table.learning_rate * min(1.0, (num_made + 1) / max(1, table.warmup_steps))


@dataclass(frozen=True, slots=True)
class Stepped:
    """What became of a gradient."""

    is_applied: bool
    """False if the gradient has a NaN or infinity in it; then no weight was touched."""
    grad_norm: float
    """Before it was limited."""


def apply_gradients(
    optimizer: torch.optim.Optimizer, *, lr: float, max_norm: float, ranks: Ranks
) -> Stepped:
    """Make one step with the gradients that the parameters hold, and drop them."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    norm = total_norm(gradients, ranks)
    is_finite = bool(torch.isfinite(norm))
    if is_finite:
        if float(norm) > max_norm:
            torch._foreach_mul_(gradients, (max_norm / (norm + _EPSILON)).clamp(max=1.0))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Stepped(is_finite, float(norm))
