"""Weights as files: a round trip, in shards, tied ones once."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from learner.trainer.policy import load_model
from learner.trainer.ranks import Ranks
from learner.trainer.tensor_files import open_stored
from learner.trainer.weights import INDEX, check_shapes, copy_weights, model_tensors, write_weights
from tests.tiny_model import TINY_MODEL_DIR

pytestmark = pytest.mark.model


@pytest.fixture
def model() -> torch.nn.Module:
    model = load_model(TINY_MODEL_DIR, device=torch.device("cpu"))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_weights_are_written_rounded_and_read_back_the_same(
    tmp_path: Path, model: torch.nn.Module, dtype: torch.dtype
) -> None:
    names = write_weights(tmp_path, model_tensors(model), dtype)

    assert names == ["model.safetensors"]
    found = load_file(tmp_path / "model.safetensors")
    expected = {name: tensor.to(dtype) for name, tensor in model_tensors(model).items()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)


def test_tied_weights_are_written_once(model: torch.nn.Module) -> None:
    tensors = model_tensors(model)

    assert "model.embed_tokens.weight" in tensors
    assert "lm_head.weight" not in tensors
    assert list(tensors) == sorted(tensors)


def test_the_same_weights_are_the_same_bytes(tmp_path: Path, model: torch.nn.Module) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_weights(tmp_path / name, model_tensors(model), torch.bfloat16)

    one, two = (tmp_path / name / "model.safetensors" for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()


def test_large_weights_are_cut_into_files_that_load_as_a_model(
    tmp_path: Path, model: torch.nn.Module
) -> None:
    tensors = model_tensors(model)

    names = write_weights(tmp_path, tensors, torch.float32, max_shard_bytes=100_000)

    assert names[:2] == ["model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors"]
    assert names[-1] == INDEX
    shards = [load_file(tmp_path / name) for name in names[:-1]]
    for shard in shards:
        assert sum(tensor.nbytes for tensor in shard.values()) <= 100_000
    assert [key for shard in shards for key in sorted(shard)] == list(tensors)
    assert json.loads((tmp_path / INDEX).read_text())["weight_map"].keys() == tensors.keys()
    (tmp_path / "config.json").write_bytes((TINY_MODEL_DIR / "config.json").read_bytes())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, tensor in model_tensors(loaded).items():
        assert torch.equal(tensor, tensors[name])


def test_weights_can_be_loaded_from_shards(tmp_path: Path, model: torch.nn.Module) -> None:
    write_weights(tmp_path, model_tensors(model), torch.float32, max_shard_bytes=100_000)
    other = load_model(TINY_MODEL_DIR, device=torch.device("cpu"))

    with open_stored(tmp_path) as stored:
        check_shapes(stored, other, tmp_path)
        copy_weights(stored, other, Ranks())

    for name, tensor in model_tensors(other).items():
        assert torch.equal(tensor, model_tensors(model)[name])
