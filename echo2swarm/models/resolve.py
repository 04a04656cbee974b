"""From what ``model.path`` says to a model folder on this machine."""

import re
from pathlib import Path
from typing import Final

from echo2swarm.errors import StoreError
from echo2swarm.models.embedded import Say, embedded_model_folder
from echo2swarm.models.folder import check_model_folder

EMBEDDED: Final = "embedded"
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_WANTED: Final = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt")


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


def is_hub_id(path: str) -> bool:
    """Whether ``path`` may be the id of a model on the hub."""
    return _HUB_ID.fullmatch(path) is not None


def _from_hub(hub_id: str, say: Say) -> Path:
    from httpx import HTTPError  # noqa: PLC0415 - only for hub ids
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    say(f"fetching {hub_id} from the Hugging Face hub, unless it is cached")
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(_WANTED)))
    except (OSError, HTTPError, HfHubHTTPError, LocalEntryNotFoundError) as exc:
        reason = str(exc).strip().splitlines()[0][:300]
        raise StoreError(
            f"{hub_id} is not a folder here, and can't be fetched from the hub: {reason}; "
            "check the spelling and the network, or give a folder"
        ) from exc
