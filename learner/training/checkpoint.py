"""A checkpoint: weights in float32, optimizer, random state and step, as safetensors and JSON."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from echo2swarm.errors import StoreError
from learner.training.folders import new_folder, read_state, write_state
from learner.training.weights import load_weights, model_tensors, write_weights

_OPTIMIZER: Final = "optimizer.safetensors"
_RNG: Final = "rng"
_DEVICE_RNG: Final = "rng_device"


def copy_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, step: int
) -> Callable[[Path], None]:
    """Copy everything that the next update depends on into memory.

    Returns:
        What writes the copy into a new folder, in whatever thread, while training goes on. It
        raises :class:`~echo2swarm.errors.StoreError` if the folder exists or can't be written.
    """
    weights = {name: _copy(tensor) for name, tensor in model_tensors(model).items()}
    tensors = {_RNG: torch.get_rng_state(), **_device_rng(model)}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = _copy(value)

    def write(folder: Path) -> None:
        with new_folder(folder) as partial:
            write_weights(partial, weights, torch.float32)
            save_file(tensors, partial / _OPTIMIZER)
            write_state(partial, {"step": step})

    return write


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in host memory of their own."""
    host = tensor.detach().cpu().contiguous()
    return host.clone() if host.data_ptr() == tensor.data_ptr() else host


def _device_rng(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    device = next(model.parameters()).device
    return {_DEVICE_RNG: torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load what :func:`copy_state` wrote, and return its step.

    Raises:
        StoreError: the checkpoint is not whole, or is of another model.
    """
    state = read_state(folder)
    if state is None:
        raise StoreError(f"checkpoint {folder} is not complete; resume from another one")
    load_weights(folder, model)
    tensors = load_file(folder / _OPTIMIZER)
    torch.set_rng_state(tensors.pop(_RNG))
    device_rng = tensors.pop(_DEVICE_RNG, None)
    parameters = dict(model.named_parameters())
    device = next(iter(parameters.values())).device
    if device_rng is not None and device.type == "cuda":
        torch.cuda.set_rng_state(device_rng, device)
    for full_name, value in tensors.items():
        key, name = full_name.split("/", 1)
        parameter = parameters[name]
        # Fused AdamW wants its step count where the parameter is.
        optimizer.state[parameter][key] = value.to(parameter.device)
    return int(state["step"])
