"""Loading and replacing weights: all of a version, or nothing of it."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import PreTrainedModel

from echo2swarm.processes.worker import OnProgress
from echo2swarm.system.errors import ConfigError
from node.engine import transformers_model
from node.engine.base import PolicyFiles
from node.engine.memory_bound import bounded_memory
from node.engine.messages import Generate, Generated, LoadPolicy, PolicyLoaded
from node.engine.options import TransformersOptions
from node.engine.transformers_model import TornWeightsError, build_model, replace_weights
from node.engine.transformers_worker import TransformersEngine, choose_dtype
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import pack_tokens
from protocols.sampling import SamplingParams
from tests.node.engine.tiny_policy import state_of, tiny_model, write_policy

pytestmark = pytest.mark.model

State = dict[str, torch.Tensor]
NORM = "model.norm.weight"


def quiet(_what: str, _done: float, _total: float) -> None:
    pass


QUIET: OnProgress = quiet


def engine() -> TransformersEngine:
    return TransformersEngine(TransformersOptions(device="cpu", dtype="float32"))


def load(it: TransformersEngine, policy: PolicyFiles) -> PolicyLoaded:
    message = LoadPolicy(policy.version, str(policy.weights_dir), str(policy.assets_dir))
    answer = it.handle(message, QUIET)
    assert isinstance(answer, PolicyLoaded)
    return answer


def generate(it: TransformersEngine, prompt: list[int], num_new: int = 8) -> Generated:
    samples = tuple(SampleSpec(i, i) for i in range(4))
    groups = (LeasedGroup(0, pack_tokens(prompt), samples),)
    answer = it.handle(Generate(groups, SamplingParams(1.0, num_new, ())), QUIET)
    assert isinstance(answer, Generated)
    return answer


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_weights_are_those_in_the_files(tmp_path: Path, is_tied: bool) -> None:
    source = tiny_model(1, is_tied=is_tied)
    policy = write_policy(tmp_path, 0, source)

    built = build_model(
        policy.assets_dir, policy.weights_dir, device=torch.device("cpu"), dtype=torch.float32
    )
    replace_weights(built, policy.weights_dir)

    for name, tensor in source.state_dict().items():
        assert torch.equal(built.state_dict()[name], tensor), name


def test_bfloat16_files_become_float32_weights_without_change(tmp_path: Path) -> None:
    source = tiny_model(1)
    state = {name: t.bfloat16() for name, t in state_of(source).items()}
    policy = write_policy(tmp_path, 0, source, state)

    built = build_model(
        policy.assets_dir, policy.weights_dir, device=torch.device("cpu"), dtype=torch.float32
    )
    replace_weights(built, policy.weights_dir)

    assert torch.equal(built.state_dict()[NORM], state[NORM].float())
    assert built.dtype is torch.float32


def test_a_tied_tensor_may_be_in_the_files_under_all_its_names(tmp_path: Path) -> None:
    source = tiny_model(1)
    state = {name: t.clone() for name, t in source.state_dict().items()}
    assert "lm_head.weight" in state
    policy = write_policy(tmp_path, 0, source, state)

    load(engine(), policy)


def test_new_weights_change_what_is_sampled_and_the_version(tmp_path: Path) -> None:
    it = engine()
    load(it, write_policy(tmp_path, 0, tiny_model(0)))
    old = generate(it, [1, 2])
    load(it, write_policy(tmp_path, 1, tiny_model(1)))
    new = generate(it, [1, 2])

    assert {c.oldest_version for c in old.completions} == {0}
    assert {c.oldest_version for c in new.completions} == {1}
    assert [c.logprobs for c in old.completions] != [c.logprobs for c in new.completions]


def without_norm(state: State) -> State:
    del state[NORM]
    return state


def with_a_stranger(state: State) -> State:
    return {**state, "model.stranger": torch.zeros(3)}


def with_another_shape(state: State) -> State:
    return {**state, NORM: torch.zeros(65)}


def with_integers(state: State) -> State:
    return {**state, NORM: torch.zeros(64, dtype=torch.int64)}


def with_nan(state: State) -> State:
    state[NORM][7] = float("nan")
    return state


def with_an_untied_twin(state: State) -> State:
    return {**state, "lm_head.weight": state["model.embed_tokens.weight"] + 1}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (without_norm, f"tensor {NORM} is missing"),
        (with_a_stranger, "no tensor model.stranger"),
        (with_another_shape, r"has shape \(65,\), the model's \(64,\)"),
        (with_integers, "is of type I64"),
        (with_nan, "not finite"),
        (with_an_untied_twin, "is tied to"),
    ],
)
def test_a_bad_version_is_refused_whole(
    tmp_path: Path, spoil: Callable[[State], State], complaint: str
) -> None:
    it = engine()
    load(it, write_policy(tmp_path, 0, tiny_model(0)))
    before = generate(it, [1, 2])
    other = tiny_model(1)
    bad = write_policy(tmp_path, 1, other, spoil(state_of(other)))

    with pytest.raises(ValueError, match=complaint):
        load(it, bad)

    assert generate(it, [1, 2]).completions == before.completions


def test_a_file_cut_short_is_refused_whole(tmp_path: Path) -> None:
    it = engine()
    load(it, write_policy(tmp_path, 0, tiny_model(0)))
    before = generate(it, [1, 2])
    bad = write_policy(tmp_path, 1, tiny_model(1))
    (file,) = bad.weights_dir.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1000])

    with pytest.raises(SafetensorError):
        load(it, bad)

    assert generate(it, [1, 2]).completions == before.completions


class ExitedError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fifth tensor that is written fail, and the end of the process be an exception."""
    check = transformers_model._check

    class Broken:
        def copy_(self, _: torch.Tensor) -> None:
            raise RuntimeError("out of memory")

    def check_and_break(model: PreTrainedModel, sources: dict[str, Any]) -> list[tuple[str, Any]]:
        targets: list[tuple[str, Any]] = list(check(model, sources))
        targets[4] = targets[4][0], Broken()
        return targets

    def leave(status: int) -> None:
        raise ExitedError(status)

    monkeypatch.setattr(transformers_model, "_check", check_and_break)
    monkeypatch.setattr(os, "_exit", leave)


def test_weights_that_were_written_half_way_are_never_sampled_with(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    it = engine()
    load(it, write_policy(tmp_path, 0, tiny_model(0)))
    newer = write_policy(tmp_path, 1, tiny_model(1))
    request.getfixturevalue("fails_half_way")

    with pytest.raises(ExitedError, match="1"):
        load(it, newer)


def test_a_first_policy_that_fails_half_way_leaves_none(
    tmp_path: Path, fails_half_way: None
) -> None:
    it = engine()
    with pytest.raises(TornWeightsError, match="out of memory"):
        load(it, write_policy(tmp_path, 0, tiny_model(0)))
    with pytest.raises(RuntimeError, match="no policy"):
        generate(it, [1, 2])


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    source = tiny_model(0)
    policy = write_policy(tmp_path, 0, source)
    (policy.weights_dir / "model.safetensors").rename(policy.weights_dir / "one.safetensors")
    save_file({NORM: torch.ones(64)}, policy.weights_dir / "two.safetensors")

    with pytest.raises(ValueError, match="in two files"):
        load(engine(), policy)


def test_a_version_that_is_bad_from_the_start_leaves_no_policy(tmp_path: Path) -> None:
    it = engine()
    source = tiny_model(0)
    with pytest.raises(ValueError, match="missing"):
        load(it, write_policy(tmp_path, 0, source, without_norm(state_of(source))))

    with pytest.raises(RuntimeError, match="no policy"):
        generate(it, [1])


@pytest.mark.parametrize(
    ("prompt", "num_new", "complaint"),
    [([16], 1, "vocabulary has 16"), ([1] * 100, 29, "the model takes 128")],
)
def test_prompts_that_the_model_cannot_take_are_refused(
    tmp_path: Path, prompt: list[int], num_new: int, complaint: str
) -> None:
    it = engine()
    load(it, write_policy(tmp_path, 0, tiny_model(0)))

    with pytest.raises(ValueError, match=complaint):
        generate(it, prompt, num_new)


def test_a_cpu_without_bfloat16_instructions_computes_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False})
    assert choose_dtype("auto", torch.device("cpu")) is torch.float32
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert choose_dtype("auto", torch.device("cpu")) is torch.bfloat16
    assert choose_dtype("bfloat16", torch.device("cpu")) is torch.bfloat16


def spoil_config(policy: PolicyFiles, **keys: object) -> None:
    path = policy.assets_dir / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **keys}))


BOMBS: dict[str, dict[str, object]] = {
    "vocabulary": {"vocab_size": 2_000_000_000},
    "layers": {"num_hidden_layers": 30_000},
    "experts": {"num_local_experts": 10**7},
    "hidden": {"hidden_size": 4_000_000, "num_attention_heads": 1, "num_key_value_heads": 1},
    "intermediate": {"intermediate_size": 200_000_000},
    "positions": {"max_position_embeddings": 10**12},
    "angles": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1e9}},
    "labels": {"num_labels": 10**9},
    "quantized": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    "kernel": {"_attn_implementation": "kernels-community/flash-attn2@refs/pr/7"},
    "kernel by parts": {"attn_implementation": {"": "someone/kernel:fn"}},
    "code": {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}, "model_type": "evil"},
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_config_that_asks_for_more_than_its_weights_bear_out_takes_no_memory(
    tmp_path: Path, bomb: str
) -> None:
    it = engine()
    load(it, write_policy(tmp_path, 0, tiny_model(0)))
    policy = write_policy(tmp_path, 1, tiny_model(1))
    spoil_config(policy, **BOMBS[bomb])
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises((ConfigError, ValueError, RuntimeError)):
        load(it, policy)

    taken_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert taken_kb < 200_000
    assert {c.oldest_version for c in generate(it, [1, 2]).completions} == {0}


def test_a_model_that_takes_more_memory_than_its_weights_need_is_refused() -> None:
    with (
        pytest.raises(MemoryError, match="wanted more than 64 MiB"),
        bounded_memory(64 << 20, on_cpu=True),
    ):
        torch.ones(256 << 20, dtype=torch.uint8)
    torch.ones(256 << 20, dtype=torch.uint8)


def test_a_process_that_the_system_does_not_limit_is_watched(tmp_path: Path) -> None:
    code = (
        "import time; from node.engine.memory_bound import bounded_memory\n"
        "with bounded_memory(64 << 20, on_cpu=False):\n"
        "    data = bytearray(256 << 20); time.sleep(30)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )

    assert done.returncode == 1
    assert "wanted more than 64 MiB" in done.stderr
