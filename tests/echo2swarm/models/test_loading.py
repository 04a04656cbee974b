"""A model is loaded with exactly the weights of its files, or refused in a line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from echo2swarm.models.loading import load_causal_lm
from echo2swarm.system.errors import ConfigError
from tests.tiny_model import TINY_MODEL_DIR

pytestmark = pytest.mark.model

State = dict[str, torch.Tensor]
UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def variant(folder: Path, spoil: Callable[[State], State], **config: object) -> Path:
    """Write the tiny model with other weights, and other keys of its config."""
    shutil.copytree(TINY_MODEL_DIR, folder, dirs_exist_ok=True)
    path = folder / "model.safetensors"
    save_file(spoil(load_file(path)), path, metadata={"format": "pt"})
    known = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**known, **config}))
    return folder


def same(state: State) -> State:
    return state


def wrapped(state: State) -> State:
    return {f"base_model.model.{name}": tensor for name, tensor in state.items()}


def without_one(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if name != UP}


def without_many(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if "layers.1" not in name}


def with_another_shape(state: State) -> State:
    return {**state, NORM: torch.ones(65)}


def with_a_stranger(state: State) -> State:
    return {**state, "model.stranger": torch.zeros(3)}


def with_two_matrices(state: State) -> State:
    head = state[EMBEDDING].clone()
    head[3, 5] += 1
    return {**state, HEAD: head}


def with_nan(state: State) -> State:
    state[NORM][7] = float("nan")
    state[UP][0, :2] = float("inf")
    return state


@pytest.mark.parametrize(
    ("spoil", "config", "said"),
    [
        (wrapped, {}, r"its 20 tensors are named base_model\.model\.NAME"),
        (without_one, {}, rf"1 tensor \({UP}\) missing from the files"),
        (without_many, {}, r"9 tensors \(model\.layers\.1\..* and 6 more\) missing"),
        (same, {"tie_word_embeddings": False}, rf"1 tensor \({HEAD}\) missing"),
        (with_another_shape, {}, r"another shape .*\(65,\), expected \(64,\)"),
        (with_a_stranger, {}, r"1 tensor \(model\.stranger\) in the files that the model has no"),
        (with_two_matrices, {}, r"ties lm_head\.weight .* differ in 1 of 1024 values"),
        (with_nan, {}, rf"3 values are NaN or infinite, in 2 tensors \({UP}, {NORM}\)"),
        (same, {"model_type": "nothing_known"}, "nothing_known"),
    ],
)
def test_weights_that_are_not_those_of_the_model_are_refused_by_name(
    tmp_path: Path, spoil: Callable[[State], State], config: dict[str, object], said: str
) -> None:
    folder = variant(tmp_path, spoil, **config)

    with pytest.raises(ConfigError, match=rf"^the model in {tmp_path} can't [^\n]*{said}[^\n]*$"):
        load_causal_lm(folder, dtype=torch.float32)


def without_prefix(state: State) -> State:
    return {name.removeprefix("model."): tensor for name, tensor in state.items()}


def with_the_same_twice(state: State) -> State:
    return {**state, HEAD: state[EMBEDDING].clone()}


def with_a_computed_buffer(state: State) -> State:
    return {**state, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}


@pytest.mark.parametrize(
    "spoil", [same, without_prefix, with_the_same_twice, with_a_computed_buffer]
)
def test_what_may_be_absent_or_there_twice_changes_nothing(
    tmp_path: Path, spoil: Callable[[State], State]
) -> None:
    expected = load_file(TINY_MODEL_DIR / "model.safetensors")

    model = load_causal_lm(variant(tmp_path, spoil), dtype=torch.bfloat16)

    for name, tensor in expected.items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert torch.equal(model.state_dict()[HEAD], expected[EMBEDDING])
