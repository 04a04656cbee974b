"""What a model folder must hold; checked without loading anything heavy."""

import json
import os
import struct
from pathlib import Path
from typing import Any, Final

from echo2swarm.models.config_bounds import check_model_config
from echo2swarm.system.errors import ConfigError
from echo2swarm.weights.file_names import is_asset_name

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_MAX_CONFIG_BYTES: Final = 1 << 20
_HEADER_LENGTH: Final = struct.Struct("<Q")
_MAX_HEADER_BYTES: Final = 100_000_000
"""As the format has it."""


def check_model_folder(folder: Path) -> Path:
    """Return ``folder`` if a trainer and an engine can load it.

    Raises:
        ConfigError: something is missing; the message says what.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"model folder {folder} does not exist; give a folder, a hub id (OWNER/NAME), or "
            '"embedded"'
        )
    if "model_type" not in read_config(folder):
        raise ConfigError(
            f"{folder / CONFIG} has no model_type; it must be a Hugging Face model config"
        )
    if not weight_files(folder):
        raise ConfigError(
            f"model folder {folder} has no .safetensors file; "
            "convert its weights (pickled ones are not read)"
        )
    check_model_config(read_config(folder), tensor_shapes(folder))
    if not (folder / TOKENIZER).is_file():
        raise ConfigError(
            f"model folder {folder} has no {TOKENIZER}; save its fast tokenizer there"
        )
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """Return the model config of ``folder``.

    Raises:
        ConfigError: there is none, or it is not JSON.
    """
    path = folder / CONFIG
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} is larger than {_MAX_CONFIG_BYTES} bytes")
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"model folder {folder} has no {CONFIG}; it must be in Hugging Face format"
        ) from None
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} can't be read: {exc}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return config


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that make up the model, in the order of their names.

    As transformers chooses them: one file of the usual name, or those that the index names. Others
    beside them hold the same once more, for other software. Without either it is all there are.

    Raises:
        ConfigError: the index is none, or names a file that is not there.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        return sorted(folder.glob("*.safetensors"))
    paths = [folder / name for name in indexed_files(folder / INDEX)]
    for path in paths:
        if not path.is_file():
            raise ConfigError(
                f"model folder {folder} has no {path.name}, which its {INDEX} names; copy or "
                "fetch it again"
            )
    return paths


def indexed_files(index: Path) -> list[str]:
    """Return the names of the files that an index of weights names.

    Raises:
        ConfigError: it is no index, or names something outside of its folder.
    """
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{index} is no index of weights: {exc!r}; fetch it again") from None
    for name in names:
        if not isinstance(name, str) or "/" in name or not name.endswith(".safetensors"):
            raise ConfigError(f"{index} names {name!r}, which is no .safetensors file beside it")
    return sorted(names)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in the weights of ``folder``, after a look at their sizes.

    Raises:
        ConfigError: a file is damaged.
    """
    found: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        found |= _checked_shapes(path)
    return found


def _checked_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Check that a safetensors file is as long as its header says, and return the tensors' shapes.

    The usual fault is a copy or a download that was cut short, and whoever loads it
    later could only say that deserializing failed.
    """
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            (header_bytes,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
            if header_bytes > _MAX_HEADER_BYTES:
                raise ValueError("no header")
            header = json.loads(file.read(header_bytes))
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        ends = [entry["data_offsets"][1] for entry in entries.values()]
        shapes = {key: tuple(map(int, entry["shape"])) for key, entry in entries.items()}
        expected_bytes = _HEADER_LENGTH.size + header_bytes + max(ends, default=0)
    except OSError as exc:
        raise ConfigError(f"{path} can't be read: {exc.strerror}") from None
    except (struct.error, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise ConfigError(f"{path} is no safetensors file; convert or fetch it again") from None
    if num_bytes != expected_bytes:
        raise ConfigError(
            f"{path} has {num_bytes} bytes, and should have {expected_bytes}; "
            "copy or fetch it again"
        )
    return shapes


def asset_files(folder: Path) -> list[Path]:
    """Return the files besides weights that belong to the model: config, tokenizer, templates."""
    return sorted(path for path in folder.iterdir() if path.is_file() and is_asset_name(path.name))
