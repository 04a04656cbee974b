"""From what ``model.path`` says to a model folder on this machine."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from echo2swarm.models.embedded import Say, embedded_model_folder, made_model_folder
from echo2swarm.models.folder import INDEX, WEIGHTS, check_model_folder, indexed_files
from echo2swarm.system.errors import StoreError

EMBEDDED: Final = "embedded"
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_WANTED: Final = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")
"""Beside the weights."""
_NOT_WANTED: Final = ("*/*",)
"""Folders hold the same weights once more, for other software."""


def resolve_model(path: str, say: Say) -> Path:
    """Return the model folder that ``path`` names, fetching or converting it if need be.

    Args:
        path: "embedded", a folder, or the id of a model on the Hugging Face hub.
        say: is told, in a line each, what takes time.

    Raises:
        ConfigError: the folder is not a model in Hugging Face format with safetensors.
        StoreError: the model can't be fetched or converted.
    """
    if path == EMBEDDED:
        return check_model_folder(embedded_model_folder(say))
    folder = Path(path).expanduser()
    if folder.exists() or not is_hub_id(path):
        return check_model_folder(folder.absolute())
    return check_model_folder(_from_hub(path, say))


def find_model(path: str) -> Path | None:
    """Return the model folder that ``path`` names; None if it would have to be made or fetched.

    Raises:
        ConfigError: as for :func:`resolve_model`.
    """
    if path == EMBEDDED:
        return made_model_folder()
    folder = Path(path).expanduser()
    if folder.exists() or not is_hub_id(path):
        return check_model_folder(folder.absolute())
    return _cached(path)


def _cached(hub_id: str) -> Path | None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        folder = Path(snapshot_download(hub_id, local_files_only=True))
        if not all((folder / name).is_file() for name in _weights_of(folder)):
            return None
    except (OSError, LocalEntryNotFoundError):
        return None
    return check_model_folder(folder)


def _weights_of(folder: Path) -> list[str]:
    """Return the names of the files that hold the weights: the index, if there is one, decides."""
    index = folder / INDEX
    return indexed_files(index) if index.is_file() else [WEIGHTS]


def is_hub_id(path: str) -> bool:
    """Whether ``path`` may be the id of a model on the hub."""
    return _HUB_ID.fullmatch(path) is not None


def _from_hub(hub_id: str, say: Say) -> Path:
    from httpx import HTTPError  # noqa: PLC0415 - only for hub ids
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    def fetch(patterns: Sequence[str], revision: str | None = None) -> Path:
        return Path(
            snapshot_download(
                hub_id,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=list(_NOT_WANTED),
            )
        )

    say(f"fetching {hub_id} from the Hugging Face hub, unless it is cached")
    try:
        folder = fetch(_WANTED)
        # Of the same commit, whose name the folder has.
        fetch(_weights_of(folder), folder.name)
        return folder
    except (OSError, HTTPError, HfHubHTTPError, LocalEntryNotFoundError) as exc:
        reason = str(exc).strip().splitlines()[0][:300]
        raise StoreError(
            f"{hub_id} is not a folder here, and can't be fetched from the hub: {reason}; "
            "check the spelling and the network, or give a folder"
        ) from exc
