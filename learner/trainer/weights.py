"""Weights as safetensors files: of a published version, or of a checkpoint."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from echo2swarm.system.errors import StoreError
from learner.trainer.ranks import Ranks
from learner.trainer.sharding import local, rows, whole
from learner.trainer.tensor_files import MODEL, TensorFiles

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
    folder: Path | None,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    ranks: Ranks | None = None,
) -> list[str]:
    """Write ``tensors`` into ``folder`` and return the names of the files, in order.

    Of tensors that are spread over several ranks, a file's worth is gathered into the main memory
    of the first at a time, tensor by tensor.

    Args:
        folder: exists, and holds no weights; None in all ranks but the first.
        tensors: in the order in which to write them.
        dtype: that floating-point tensors are rounded to.
        max_shard_bytes: no file is larger, unless it holds a single tensor.
        ranks: all of which must call this at once.
    """
    ranks = ranks or Ranks()
    shards = list(_shards(tensors, dtype, max_shard_bytes))
    names = []
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        # One shard at a time: a copy of all weights would not always fit into memory.
        data: dict[str, torch.Tensor] = {}
        for key in shard:
            tensor = whole(tensors[key], dtype)
            if folder is not None:
                data[key] = tensor.contiguous().cpu()
        with ranks.together():
            if folder is not None:
                save_file(data, folder / name, metadata={"format": "pt"})
        names.append(name)
    if len(shards) > 1:
        # In the layout of the Hugging Face hub, so that from_pretrained() finds all of them.
        files = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        with ranks.together():
            if folder is not None:
                index = json.dumps({"metadata": {}, "weight_map": files}, indent=1)
                (folder / INDEX).write_text(index)
        names.append(INDEX)
    return names


def check_shapes(stored: TensorFiles, model: torch.nn.Module, folder: Path) -> None:
    """See that stored weights are those of ``model``.

    Raises:
        StoreError: they are not.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model_tensors(model).items()}
    if stored.shapes() != wanted:
        raise StoreError(f"the weights in {folder} are not those of this model")


def copy_weights(stored: TensorFiles, model: torch.nn.Module, ranks: Ranks) -> None:
    """Copy stored weights into what of ``model`` is here."""
    with torch.no_grad():
        for name, tensor in model_tensors(model).items():
            local(tensor).copy_(stored.read(MODEL, name, *rows(tensor, ranks)))


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
