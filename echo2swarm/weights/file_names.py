"""Which files a node takes from the network: weights without code, and configuration. Nothing else.

Libraries look for more in a model's folder than one thinks: Python modules, pickled weights,
templates of processors. What is not on this list is never written to disk.
"""

from typing import Final

from protocols.errors import MalformedMessageError
from protocols.manifest import PolicyManifest

WEIGHTS_SUFFIX: Final = ".safetensors"
_ASSET_NAMES: Final = frozenset(
    {"tokenizer.model", "vocab.txt", "merges.txt", "chat_template.jinja"}
)
_ASSET_SUFFIX: Final = ".json"
_INDEX_SUFFIX: Final = ".safetensors.index.json"


def is_asset_name(name: str) -> bool:
    """Return whether a file of that name may be one of a model's assets."""
    is_json = name.endswith(_ASSET_SUFFIX) and not name.endswith(_INDEX_SUFFIX)
    return not name.startswith(".") and (is_json or name in _ASSET_NAMES)


def check_names(manifest: PolicyManifest) -> None:
    """Refuse a version that brings other files than weights and configuration.

    Raises:
        MalformedMessageError: naming the file.
    """
    for file in manifest.weights.files:
        if not file.name.endswith(WEIGHTS_SUFFIX):
            raise MalformedMessageError(
                f"version {manifest.version} brings weights in {file.name!r}; only "
                f"*{WEIGHTS_SUFFIX} is taken, which holds no code"
            )
    for file in manifest.assets.files:
        if not is_asset_name(file.name):
            raise MalformedMessageError(
                f"version {manifest.version} brings {file.name!r}, which is neither configuration "
                "nor a tokenizer's file"
            )
