"""Weights as safetensors files: of a published version, or of a checkpoint."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from echo2swarm.errors import StoreError

MAX_SHARD_BYTES: Final = 1 << 30
INDEX: Final = "model.safetensors.index.json"


def model_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that make up a model, in the order of their names, tied ones once."""
    kept = model.state_dict()
    named: dict[str, torch.Tensor] = dict(model.named_parameters())
    # Buffers that are not kept are computed from the config.
    named |= {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {name: named[name].detach() for name in sorted(named)}


def write_weights(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> list[str]:
    """Write ``tensors`` into ``folder`` and return the names of the files, in order.

    Args:
        folder: exists, and holds no weights.
        tensors: in the order in which to write them.
        dtype: that floating-point tensors are rounded to.
        max_shard_bytes: no file is larger, unless it holds a single tensor.
    """
    shards = list(_shards(tensors, dtype, max_shard_bytes))
    names = []
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        # One shard at a time: a copy of all weights would not always fit into memory.
        data = {key: _rounded(tensors[key], dtype).contiguous().cpu() for key in shard}
        save_file(data, folder / name, metadata={"format": "pt"})
        names.append(name)
    if len(shards) > 1:
        # In the layout of the Hugging Face hub, so that from_pretrained() finds all of them.
        files = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}, indent=1))
        names.append(INDEX)
    return names


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Copy the weights in ``folder`` into ``model``.

    Raises:
        StoreError: they are not those of this model; it is unchanged then.
    """
    wanted = model_tensors(model)
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found.update(load_file(path))
    shapes = {name: tensor.shape for name, tensor in found.items()}
    if shapes != {name: tensor.shape for name, tensor in wanted.items()}:
        raise StoreError(f"the weights in {folder} are not those of this model")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(found[name])


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _shards(
    tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, max_shard_bytes: int
) -> Iterator[list[str]]:
    shard: list[str] = []
    size_bytes = 0
    for name, tensor in tensors.items():
        item_bytes = dtype.itemsize if tensor.is_floating_point() else tensor.itemsize
        if shard and size_bytes + tensor.numel() * item_bytes > max_shard_bytes:
            yield shard
            shard, size_bytes = [], 0
        shard.append(name)
        size_bytes += tensor.numel() * item_bytes
    yield shard
