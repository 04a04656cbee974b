"""A checkpoint: weights in float32, optimizer, random state and step, as safetensors and JSON.

How its tensors are laid out, :mod:`learner.trainer.tensor_files` says. Whatever number of processes
wrote it, any number can go on from it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from echo2swarm.system.errors import StoreError
from learner.trainer.folders import new_folder, read_state, write_state
from learner.trainer.ranks import Ranks
from learner.trainer.sharding import is_spread, local, rows
from learner.trainer.tensor_files import (
    MODEL,
    OPTIMIZER_FILE,
    TensorFiles,
    TensorRows,
    open_stored,
    rank_file,
    write_rows,
)
from learner.trainer.weights import check_shapes, copy_weights, model_tensors, write_weights

_RNG: Final = "rng"
_DEVICE_RNG: Final = "rng_device"
_OTHERS: Final = ""
"""Kind of what is of no parameter."""

Write = Callable[[Path], None]


def copy_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, step: int) -> Write:
    """Copy everything that the next update depends on into memory; for one process.

    Returns:
        What writes the copy into a new folder, in whatever thread, while training goes on. It
        raises :class:`~echo2swarm.system.errors.StoreError` if the folder exists or is not
        writable.
    """
    weights = {name: _copy(tensor) for name, tensor in model_tensors(model).items()}
    tensors = _rng(model)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = _copy(value)

    def write(folder: Path) -> None:
        with new_folder(folder) as partial:
            write_weights(partial, weights, torch.float32)
            save_file(tensors, partial / OPTIMIZER_FILE)
            write_state(partial, {"step": step})

    return write


def copy_part(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> Write:
    """Copy what one of several processes holds of all that into memory.

    Returns:
        What writes the copy into a folder that is there, in files of its own.
    """
    parts: dict[str, dict[str, TensorRows]] = {}

    def add(kind: str, name: str, value: torch.Tensor) -> None:
        num_rows = value.shape[0] if value.ndim else 0
        start = rows(value, ranks)[0] if is_spread(value) else 0
        if is_spread(value) or ranks.is_first:  # else all ranks have the same
            held = TensorRows(_copy(local(value)), start, num_rows)
            parts.setdefault(kind, {})[name] = held

    for name, tensor in model_tensors(model).items():
        add(MODEL, name, tensor)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            add(key, name, value)
    others = _rng(model) if ranks.is_first else {}

    def write(folder: Path) -> None:
        for kind, tensors in parts.items():
            write_rows(folder / rank_file(ranks.rank, ranks.size, kind), tensors)
        if others:
            save_file(others, folder / OPTIMIZER_FILE)

    return write


def load_checkpoint(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks
) -> int:
    """Load what :func:`copy_state` or :func:`copy_part` wrote, and return its step.

    Raises:
        StoreError: the checkpoint is not whole, or is of another model.
    """
    state = read_state(folder)
    if state is None:
        raise StoreError(f"checkpoint {folder} is not complete; resume from another one")
    with open_stored(folder) as stored:
        check_shapes(stored, model, folder)
        copy_weights(stored, model, ranks)
        for name, parameter in model.named_parameters():
            for kind in sorted(stored.kinds() - {MODEL, _OTHERS}):
                if name in stored.shapes(kind):
                    value = _value(stored, kind, name, parameter, ranks)
                    optimizer.state[parameter][kind] = value
        _set_rng(stored, next(model.parameters()).device)
    return int(state["step"])


def _value(
    stored: TensorFiles, kind: str, name: str, parameter: torch.Tensor, ranks: Ranks
) -> torch.Tensor:
    """Return a value of the optimizer, laid out as its parameter is."""
    if not stored.shapes(kind)[name]:
        # Fused AdamW wants its step count where the parameter is.
        return stored.read(kind, name).to(parameter.device)
    value = torch.zeros_like(parameter.detach())
    local(value).copy_(stored.read(kind, name, *rows(parameter, ranks)))
    return value


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in host memory of their own."""
    host = tensor.detach().cpu().contiguous()
    return host.clone() if host.data_ptr() == tensor.data_ptr() else host


def _rng(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    device = next(model.parameters()).device
    states = {_RNG: torch.get_rng_state()}
    return states | (
        {_DEVICE_RNG: torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    )


def _set_rng(stored: TensorFiles, device: torch.device) -> None:
    names = stored.shapes(_OTHERS)
    torch.set_rng_state(stored.read(_OTHERS, _RNG))
    if _DEVICE_RNG in names and device.type == "cuda":
        torch.cuda.set_rng_state(stored.read(_OTHERS, _DEVICE_RNG), device)
