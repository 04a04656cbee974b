"""What safetensors files hold, and whether it is sound: read before an engine is given them.

The file format is documented at https://huggingface.co/docs/safetensors: a length, a JSON
header with each tensor's type, shape and place, and the bytes.
"""

from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open

from echo2swarm.models.folder import weight_files

TensorKinds = dict[str, tuple[str, tuple[int, ...]]]
"""Of each tensor by name: its type, and its shape."""

WEIGHT_TYPES: Final = frozenset({"BF16", "F16", "F32"})


def read_kinds(weights_dir: Path) -> TensorKinds:
    """Return what the safetensors files in ``weights_dir`` hold, after looking at every value.

    Raises:
        ValueError: there are none, a tensor is there twice, is of no type for weights, or has
            values that are not finite.
    """
    paths = weight_files(weights_dir)
    if not paths:
        raise ValueError(f"no .safetensors file in {weights_dir}")
    kinds: TensorKinds = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict, and not iterable
                if name in kinds:
                    raise ValueError(f"tensor {name} is in two files of {weights_dir}")
                header = file.get_slice(name)
                kind = header.get_dtype(), tuple(header.get_shape())
                if kind[0] not in WEIGHT_TYPES:
                    raise ValueError(
                        f"tensor {name} is of type {kind[0]}, not one of {sorted(WEIGHT_TYPES)}"
                    )
                if not bool(torch.isfinite(file.get_tensor(name)).all()):
                    raise ValueError(f"tensor {name} has values that are not finite")
                kinds[name] = kind
    return kinds


def check_same_kinds(found: TensorKinds, wanted: TensorKinds) -> None:
    """Raise unless both hold tensors of the same names, types and shapes.

    Raises:
        ValueError: naming the first that differs.
    """
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise ValueError(f"tensor {name} is missing from the weights")
        if name not in wanted:
            raise ValueError(f"the model has no tensor {name}")
        if found[name] != wanted[name]:
            raise ValueError(
                f"tensor {name} has type and shape {found[name]}, the model's {wanted[name]}"
            )
