"""A checkpoint: weights in float32, optimizer, random state and step, as safetensors and JSON."""

from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from echo2swarm.errors import StoreError
from learner.training.folders import new_folder, read_state, write_state
from learner.training.weights import load_weights, model_tensors, write_weights

_OPTIMIZER: Final = "optimizer.safetensors"
_RNG: Final = "rng"


def save_checkpoint(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, step: int
) -> None:
    """Write everything that the next update depends on into the new ``folder``.

    Raises:
        StoreError: it exists or can't be written.
    """
    tensors = {_RNG: torch.get_rng_state()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value.detach().contiguous().cpu()
    with new_folder(folder) as partial:
        write_weights(partial, model_tensors(model), torch.float32)
        save_file(tensors, partial / _OPTIMIZER)
        write_state(partial, {"step": step})


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load what :func:`save_checkpoint` saved, and return its step.

    Raises:
        StoreError: the checkpoint is not whole, or is of another model.
    """
    state = read_state(folder)
    if state is None:
        raise StoreError(f"checkpoint {folder} is not complete; resume from another one")
    load_weights(folder, model)
    tensors = load_file(folder / _OPTIMIZER)
    torch.set_rng_state(tensors.pop(_RNG))
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        key, name = full_name.split("/", 1)
        parameter = parameters[name]
        # Fused AdamW wants its step count where the parameter is.
        optimizer.state[parameter][key] = value.to(parameter.device)
    return int(state["step"])
