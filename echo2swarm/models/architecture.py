"""What a model's config says of its size, whatever the family calls it; without torch."""

from collections.abc import Mapping
from typing import Any, Final

_TEXT_CONFIG: Final = "text_config"
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that is about text: all of it, but for models that see, too."""
    inner = config.get(_TEXT_CONFIG)
    return inner if isinstance(inner, Mapping) else config


def num_positions(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a prompt may have with its completion; None if that isn't said."""
    return _first_number(text_config(config), _POSITIONS)


def vocab_size(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens the model has an embedding of; None if that isn't said."""
    return _first_number(text_config(config), ("vocab_size",))


def _first_number(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        match config.get(key):
            case bool():
                continue
            case int(number) if number > 0:
                return number
    return None
