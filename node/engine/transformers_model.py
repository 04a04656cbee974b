"""A policy as a transformers model: built once from its config, then given new weights in place.

All of a version is checked before any of it is used, so that the model never
holds a mixture of two.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from echo2swarm.models.config_bounds import check_model_config, clean_config
from echo2swarm.models.folder import read_config, tensor_shapes, weight_files
from node.engine.memory_bound import bound_of, bounded_memory
from node.engine.weight_files import WEIGHT_TYPES

MAX_BUFFER_BYTES: Final = 256 << 20
"""Of what a model computes from its config: tables of angles, of masks."""


class TornWeightsError(Exception):
    """Writing the new weights failed half way: this model must not be used again."""


def build_model(
    assets_dir: Path, weights_dir: Path, *, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Return the model that the config in ``assets_dir`` describes, with arbitrary weights.

    Raises:
        ConfigError: the config asks for what is not taken, or for more than the weights bear out.
        ValueError: its tensors are not those in ``weights_dir``.
        MemoryError: it takes more memory than such weights need.
    """
    shapes = tensor_shapes(weights_dir)
    weights_bytes = sum(map(math.prod, shapes.values())) * dtype.itemsize
    bound = bound_of(weights_bytes)
    with bounded_memory(bound, on_cpu=device.type == "cpu"):
        check_built(assets_dir, weights_dir)
        model = _made(assets_dir, device=device, dtype=dtype)
    model.train(False)
    model.requires_grad_(False)
    return model


def check_built(assets_dir: Path, weights_dir: Path) -> None:
    """Build a model without memory for its tensors, and compare them with those in the files.

    Raises:
        ConfigError: the config asks for what is not taken, or for more than the weights bear out.
        ValueError: a tensor is missing, unknown, or of another shape.
    """
    shapes = tensor_shapes(weights_dir)
    check_model_config(read_config(assets_dir), shapes)
    model = _made(assets_dir, device=torch.device("meta"), dtype=torch.bfloat16)
    state = model.state_dict()
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    for name, tensor in state.items():
        if name not in shapes and name not in tied and tied_to(name, tied).isdisjoint(shapes):
            raise ValueError(f"tensor {name} is missing from the weights")
        if shapes.get(name, tuple(tensor.shape)) != tuple(tensor.shape):
            raise ValueError(
                f"tensor {name} has shape {shapes[name]}, the model's {tuple(tensor.shape)}"
            )
    if unknown := shapes.keys() - state.keys():
        raise ValueError(f"the model has no tensor {min(unknown)}")
    num_bytes = sum(buffer.nbytes for buffer in model.buffers())
    if num_bytes > MAX_BUFFER_BYTES:
        raise ValueError(f"the model's config asks for tables of {num_bytes} bytes")


def tied_to(source: str, tied: Mapping[str, str]) -> set[str]:
    """Return the names that are tied to ``source``."""
    return {target for target, of in tied.items() if of == source}


def _made(assets_dir: Path, *, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    # Code that a repository brings along is never run, nor what else it names ever looked for.
    cleaned = clean_config(read_config(assets_dir))
    config = AutoConfig.for_model(cleaned.pop("model_type"), **cleaned)
    make: Callable[..., PreTrainedModel] = AutoModelForCausalLM.from_config
    with torch.device(device):
        return make(config, dtype=dtype, trust_remote_code=False)


def replace_weights(model: PreTrainedModel, weights_dir: Path) -> None:
    """Give ``model`` the weights in the safetensors files of ``weights_dir``.

    Raises:
        ValueError: something is missing, unknown, of another shape or kind, or not finite;
            the model is as it was.
        TornWeightsError: it is not.
    """
    with ExitStack() as stack:
        sources = _open(weights_dir, stack)
        targets = _check(model, sources)
        try:
            with torch.no_grad():
                for name, target in targets:
                    target.copy_(sources[name].get_tensor(name))
        except Exception as exc:
            raise TornWeightsError(f"could not write the new weights: {exc}") from exc


def _open(weights_dir: Path, stack: ExitStack) -> dict[str, Any]:
    """Return the open file that each tensor is in."""
    paths = weight_files(weights_dir)
    if not paths:
        raise ValueError(f"no .safetensors file in {weights_dir}")
    sources: dict[str, Any] = {}
    for path in paths:
        file = stack.enter_context(safe_open(path, framework="pt"))
        for name in file.keys():  # noqa: SIM118 - not a dict, and not iterable
            if name in sources:
                raise ValueError(f"tensor {name} is in two files of {weights_dir}")
            sources[name] = file
    return sources


def _check(model: PreTrainedModel, sources: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """Return what to copy where, after checking all of it."""
    targets: list[tuple[str, Tensor]] = []
    unknown = set(sources)
    for names, target in _tensors(model):
        given = [name for name in names if name in sources]
        unknown.difference_update(names)
        if not given:
            raise ValueError(f"tensor {names[0]} is missing from the weights")
        for name in given:
            _check_tensor(name, sources[name], target)
        first = sources[given[0]].get_tensor(given[0])
        if not bool(torch.isfinite(first).all()):
            raise ValueError(f"tensor {given[0]} has values that are not finite")
        for name in given[1:]:
            if not torch.equal(first, sources[name].get_tensor(name)):
                raise ValueError(f"{name} is tied to {given[0]}, but their values differ")
        targets.append((given[0], target))
    if unknown:
        raise ValueError(f"the model has no tensor {min(unknown)}")
    return targets


def _check_tensor(name: str, file: Any, target: Tensor) -> None:  # noqa: ANN401 - untyped library
    header = file.get_slice(name)
    shape, dtype = tuple(header.get_shape()), header.get_dtype()
    if shape != tuple(target.shape):
        raise ValueError(f"tensor {name} has shape {shape}, the model's {tuple(target.shape)}")
    if dtype not in WEIGHT_TYPES:
        raise ValueError(f"tensor {name} is of type {dtype}, not one of {sorted(WEIGHT_TYPES)}")


def _tensors(model: PreTrainedModel) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield each tensor of the state once, with all its names: tied ones have several."""
    names: dict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    tensors: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        names[key].append(name)
        tensors[key] = tensor
    for key, tensor in tensors.items():
        yield tuple(names[key]), tensor
