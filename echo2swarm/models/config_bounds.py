"""What of a model's config is believed: what its weights bear out; without torch.

The config comes with a run, from a stranger to whoever contributes a machine. It may ask for more
layers than a machine has memory for, or for code from elsewhere. Sizes of tensors need no bounds
here: they are compared with the files before memory is taken for them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from echo2swarm.models.architecture import num_positions, text_config
from echo2swarm.system.errors import ConfigError

Shapes = Mapping[str, tuple[int, ...]]
"""Of each tensor by name."""

_REFUSED: Final = frozenset({"quantization_config", "compression_config", "per_layer_config"})
"""They choose other loaders, whose tensors are of no type that is taken."""
_KERNELS: Final = re.compile(r".*(attn|experts)_implementation.*|.*kernel_config|use_kernels")
_BUILT_IN_KERNELS: Final = frozenset(
    {"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "grouped_mm"}
)
_DROPPED: Final = frozenset(
    {
        # Code, and where it would be had from.
        "auto_map",
        "custom_pipelines",
        "name_or_path",
        # Who loads the model decides on these.
        "device_map",
        "distributed_config",
        "torchscript",
        "transformers_version",
        # Of classifiers; tables as long as the config likes.
        "id2label",
        "label2id",
        "num_labels",
        "pruned_heads",
    }
)
_TYPES_AT: Final = ("dtype", "torch_dtype")
_TYPES: Final = ("bfloat16", "float16", "float32")
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_COUNT: Final = re.compile(r"(num|n)_.*|.*_(layers?|depth|blocks|experts)|depth")
_LEAST_COUNT: Final = 4096
"""Modules of which a config may ask for so many cost next to nothing, if they have no tensors."""
_BLOCK: Final = re.compile(r"^(.*?)\.(\d+)\.")
MAX_POSITIONS: Final = 1 << 24
_MAX_DEPTH: Final = 8


def check_model_config(config: Mapping[str, Any], shapes: Shapes) -> None:
    """See that a config asks for no more than its weights bear out, and for no code.

    Args:
        config: ``config.json``.
        shapes: of the tensors in the files.

    Raises:
        ConfigError: naming the key, and both numbers.
    """
    num_blocks = _num_blocks(shapes)
    text = text_config(config)
    for key in _LAYERS:
        wanted = text.get(key)
        if num_blocks and isinstance(wanted, int) and wanted != num_blocks:
            raise ConfigError(f"config.json: {key} is {wanted}, but the files hold {num_blocks}")
    positions = num_positions(config)
    if positions is not None and positions > MAX_POSITIONS:
        raise ConfigError(f"config.json: {positions} positions; at most {MAX_POSITIONS} are taken")
    most = max(_LEAST_COUNT, len(shapes))
    for key, value in _values(config):
        if key in _REFUSED and value:
            raise ConfigError(f"config.json: {key} is not taken; convert the weights to bfloat16")
        if _KERNELS.fullmatch(key) and not _is_built_in(value):
            raise ConfigError(f"config.json: {key} names code from elsewhere, {str(value)[:80]!r}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (
            is_number
            and _COUNT.fullmatch(key)
            and not -1 <= value <= most
            and not (key.endswith("_positions"))
        ):
            raise ConfigError(
                f"config.json: {key} is {value}, with {len(shapes)} tensors in the files"
            )
        if is_number and key == "partial_rotary_factor" and not 0 <= value <= 1:
            raise ConfigError(f"config.json: {key} is {value}; expected a share, from 0 to 1")


def clean_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a config decides what the model computes, and nothing else."""
    return {
        key: clean_config(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not (key.startswith("_") or key in _DROPPED or _KERNELS.fullmatch(key))
        and not (key in _TYPES_AT and value not in _TYPES)
    }


def _is_built_in(value: object) -> bool:
    match value:
        case None | bool():
            return True
        case str():
            return value in _BUILT_IN_KERNELS
        case dict():  # of each part of the model
            return all(_is_built_in(inner) for inner in value.values())
        case _:
            return False


def _num_blocks(shapes: Shapes) -> int:
    """Return how many blocks the longest list of them has."""
    places: dict[str, set[str]] = {}
    for name in shapes:
        if found := _BLOCK.match(name):
            places.setdefault(found[1], set()).add(found[2])
    return max(map(len, places.values()), default=0)


def _values(config: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > _MAX_DEPTH:
        raise ConfigError("config.json: tables within tables, too deep")
    for key, value in config.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _values(value, depth + 1)
