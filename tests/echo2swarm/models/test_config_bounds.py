"""A model's config is believed as far as its weights bear it out."""

import json
from typing import Any

import pytest

from echo2swarm.models.config_bounds import MAX_POSITIONS, check_model_config, clean_config
from echo2swarm.models.folder import read_config, tensor_shapes
from echo2swarm.system.errors import ConfigError
from tests.tiny_model import TINY_MODEL_DIR

TINY = read_config(TINY_MODEL_DIR)
SHAPES = tensor_shapes(TINY_MODEL_DIR)


def test_the_tiny_model_is_believed() -> None:
    check_model_config(TINY, SHAPES)
    assert clean_config(TINY) == TINY


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"num_hidden_layers": 30_000}, "num_hidden_layers is 30000, but the files hold 2"),
        ({"num_hidden_layers": 1}, "num_hidden_layers is 1, but the files hold 2"),
        ({"num_local_experts": 10**6}, "num_local_experts is 1000000, with 20 tensors"),
        ({"vision_config": {"depth": 10**6}}, "depth is 1000000"),
        ({"max_position_embeddings": MAX_POSITIONS + 1}, "16777217 positions"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not taken"),
        ({"_attn_implementation": "a/kernel"}, "_attn_implementation names code from elsewhere"),
        ({"text_config": {"attn_implementation": "a/b:c"}}, "attn_implementation names code"),
        ({"attn_implementation": {"vision": "a/b"}}, "attn_implementation names code"),
        (
            {"rope_parameters": {"partial_rotary_factor": 1e9}},
            "rotary_factor is 1000000000",
        ),
        (json.loads('{"a":' * 40 + "1" + "}" * 40), "too deep"),
    ],
)
def test_what_the_weights_do_not_bear_out_is_refused_by_key(
    keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_model_config({**TINY, **keys}, SHAPES)


@pytest.mark.parametrize(
    "keys",
    [
        {"_attn_implementation": "sdpa"},
        {"attn_implementation": None, "num_experts_per_tok": 8, "num_experts": 128},
        {"max_position_embeddings": 10_485_760, "rope_theta": 5e8, "sliding_window": 4096},
        {"intermediate_size": 18_944, "bos_token_id": 151_643},
    ],
)
def test_what_published_models_say_is_believed(keys: dict[str, Any]) -> None:
    check_model_config({**TINY, **keys}, SHAPES)


def test_code_and_who_computes_it_are_no_part_of_what_a_model_computes() -> None:
    more = {
        "auto_map": {"AutoModel": "evil.Evil"},
        "_name_or_path": "http://127.0.0.1/x",
        "_attn_implementation": "sdpa",
        "num_labels": 10**9,
        "torch_dtype": "int8",
        "text_config": {"_experts_implementation": "eager", "hidden_size": 64},
    }

    assert clean_config({**TINY, **more}) == {**TINY, "text_config": {"hidden_size": 64}}
