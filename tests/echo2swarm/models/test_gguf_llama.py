"""A GGUF file becomes the model it was made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from echo2swarm.models.folder import check_model_folder
from echo2swarm.models.gguf_llama import convert_gguf

pytestmark = pytest.mark.model

HEADS, KV_HEADS, HIDDEN = 4, 2, 64
TOKENS = ["<end>", "<start>", "a", "b", "1", "2", "ab", "\u0120", "\u010a"]
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def original() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def neighbours(weights: torch.Tensor, num_heads: int) -> torch.Tensor:
    """What GGUF's writers do to the rows of query and key."""
    return torch.cat(
        [
            torch.stack([half for pair in zip(*head.chunk(2), strict=True) for half in pair])
            for head in weights.chunk(num_heads)
        ]
    )


def write_gguf(path: Path, model: LlamaForCausalLM) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(32)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *[1] * (len(TOKENS) - 2)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, parameter in model.named_parameters():
        weights = parameter.detach()
        plain = name.removeprefix("model.").removesuffix(".weight")
        if plain.startswith("layers."):
            _, layer, part = plain.split(".", 2)
            gguf_name = f"blk.{layer}.{PARTS[part]}.weight"
            if part.endswith(("q_proj", "k_proj")):
                weights = neighbours(weights, HEADS if part.endswith("q_proj") else KV_HEADS)
        else:
            gguf_name = {"embed_tokens": "token_embd", "norm": "output_norm"}[plain] + ".weight"
        values = np.ascontiguousarray(weights.numpy())
        if weights.ndim == 2 and weights.shape[1] % 32 == 0:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "model.gguf", original())
    (folder / "model").mkdir()
    convert_gguf(folder / "model.gguf", folder / "model")
    return folder / "model"


def test_the_converted_model_computes_what_the_original_does(converted: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(
        check_model_folder(converted), dtype=torch.float32
    )
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 2]])

    with torch.no_grad():
        found = model(tokens).logits.log_softmax(-1)
        expected = original()(tokens).logits.log_softmax(-1)

    assert model.config.rms_norm_eps == 1e-5
    assert (found - expected).abs().mean() < 0.1  # 8-bit weights, then bfloat16
    assert expected.std() > 0.5


def test_the_tokenizer_is_read_by_the_light_library_and_by_transformers(converted: Path) -> None:
    light = Tokenizer.from_file(str(converted / "tokenizer.json"))
    full: Any = AutoTokenizer.from_pretrained(converted)

    ids = light.encode("ab12 a\n<end>").ids

    assert ids == [6, 4, 5, 7, 2, 8, 0]
    assert full("ab12 a\n<end>").input_ids == ids
    assert light.decode(ids, skip_special_tokens=False) == "ab12 a\n<end>"
    assert (full.eos_token_id, full.bos_token_id, full.pad_token_id) == (0, 1, 0)
    assert full.chat_template == "{{ messages }}"


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(ValueError, match="'mamba', not llama"):
        convert_gguf(tmp_path / "other.gguf", tmp_path)
