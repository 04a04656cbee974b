"""Where parameters live: whole in one process, or by rows in several (FSDP2).

Each rank holds, of every parameter, some of its rows: of gradients and of the optimizer's state
likewise. A layer's parameters are gathered when it computes, and dropped again. Gradients are
*sums* over ranks, as they are over micro-batches, never means.
"""

from collections.abc import Iterable
from typing import Any, Final, cast

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from learner.trainer.ranks import Ranks

HIDDEN: Final = "hidden_states_of"
"""Method of a sharded model: everything but its last layer."""


def shard(model: torch.nn.Module, ranks: Ranks, *, device: torch.device) -> None:
    """Spread ``model`` over all ranks; with one, move it to ``device``.

    A layer at a time goes to the device as a whole, the model never does. No rank waits for
    another here.
    """
    if ranks.mesh is None:
        model.to(device)
        return
    mesh = ranks.mesh
    blocks = _blocks(model)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    # What is in no block, embedding and last layer, is used at both ends of a micro-batch, and
    # stays gathered in between.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for module in (*blocks, model):
        part = cast("FSDPModule", module)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    setattr(model, HIDDEN, _HiddenStates(model))
    register_fsdp_forward_method(model, HIDDEN)


class _HiddenStates:
    """Calls what of a model comes before its last layer."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._base = [cast("Any", model).base_model]  # in a list: not a module's submodule again

    def __call__(self, **inputs: object) -> torch.Tensor:
        hidden: torch.Tensor = self._base[0](**inputs).last_hidden_state
        return hidden


def hidden_states(model: torch.nn.Module, **inputs: object) -> torch.Tensor:
    """Return what the last layer takes."""
    if isinstance(model, FSDPModule):
        hidden: torch.Tensor = getattr(model, HIDDEN)(**inputs)
        return hidden
    return _HiddenStates(model)(**inputs)


def forget_gathered(model: torch.nn.Module) -> None:
    """Drop gathered parameters: they are about to change, or are no longer needed."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def is_spread(tensor: torch.Tensor) -> bool:
    """Whether each rank holds some rows of ``tensor`` only."""
    return isinstance(tensor, DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rows of ``tensor`` that are here; they share its memory."""
    if isinstance(tensor, DTensor):
        here: torch.Tensor = tensor.to_local()
        return here.detach()
    return tensor.detach()


def rows(tensor: torch.Tensor, ranks: Ranks) -> tuple[int, int]:
    """Return the first row of ``tensor`` that is here, and the one behind the last."""
    num_rows = tensor.shape[0] if tensor.ndim else 1
    if not is_spread(tensor):
        return 0, num_rows
    # As torch.chunk() cuts, which FSDP uses.
    size = -(-num_rows // ranks.size)
    return min(ranks.rank * size, num_rows), min((ranks.rank + 1) * size, num_rows)


def whole(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return all of ``tensor``, rounded; on all ranks at once.

    It is gathered as it is rounded: half the bytes, where they are half as wide.
    """
    tensor = tensor.detach()
    if tensor.is_floating_point():
        tensor = tensor.to(dtype)
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor


def total_norm(gradients: Iterable[torch.Tensor], ranks: Ranks) -> torch.Tensor:
    """Return the norm of all gradients, over all ranks, as a scalar."""
    parts = [local(gradient) for gradient in gradients]
    norm = torch.nn.utils.get_total_norm(parts)
    if ranks.size > 1:
        square = norm.double().square()
        ranks.add_up(square)
        norm = square.sqrt().to(norm.dtype)
    return norm


def _blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers to shard one by one."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    if found:
        return found
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return [*max(lists, key=_length)] if lists else []


def _length(modules: torch.nn.ModuleList) -> int:
    return len(modules)
