"""What of a tokenizer's files says where a sequence ends; without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echo2swarm.models.architecture import text_config


@dataclass(frozen=True, slots=True)
class EndTokens:
    """The tokens that end a sequence."""

    ids: tuple[int, ...]
    """Of all sources together, the first source's first; may be empty."""
    warning: str = ""
    """What the sources don't agree on; empty if they do."""


def end_tokens(
    generation: Mapping[str, Any],
    model: Mapping[str, Any],
    tokenizer: int | None,
    *,
    vocab_size: int,
) -> EndTokens:
    """Return what ends a sequence, by any of the files that say so.

    A model was trained to end with one of them, and which of the files knows it differs from
    model to model; one that is never sampled does no harm.

    Args:
        generation: ``generation_config.json``.
        model: ``config.json``.
        tokenizer: what ``tokenizer_config.json`` names, if the tokenizer has it.
        vocab_size: what tokens are below.
    """
    inner = text_config(model).get("eos_token_id")
    said = {
        "generation_config.json": _ids(generation.get("eos_token_id")),
        "config.json": (*_ids(model.get("eos_token_id")), *_ids(inner)),
        "tokenizer_config.json": () if tokenizer is None else (tokenizer,),
    }
    beyond = sorted({i for ids in said.values() for i in ids if i >= vocab_size})
    ids = tuple(dict.fromkeys(i for found in said.values() for i in found if i < vocab_size))
    speaking = {name: sorted(set(found)) for name, found in said.items() if found}
    first = next(iter(speaking.values()), [])
    warnings = []
    # Files that name fewer than the first one that speaks contradict nothing.
    if any(set(found) - set(first) for found in speaking.values()):
        texts = ", ".join(f"{name}: {found}" for name, found in speaking.items())
        warnings.append(f"the model's files name different ends of sequence ({texts}); all are")
    if beyond:
        warnings.append(f"ends of sequence {beyond} are beyond the vocabulary of {vocab_size}")
    return EndTokens(ids, "; ".join(warnings))


def _ids(value: object) -> tuple[int, ...]:
    """Return the token ids in a config's value; some files say -1 for none."""
    match value:
        case bool():
            return ()
        case int(token):
            return (token,) if token >= 0 else ()
        case list(tokens):
            return tuple(i for token in tokens for i in _ids(token))
        case _:
            return ()
