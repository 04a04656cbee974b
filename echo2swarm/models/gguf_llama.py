"""From a GGUF file of the Llama family to a model folder.

Written for one known file (see :mod:`echo2swarm.models.embedded`), not for all
that GGUF allows. 4-bit blocks become float32 and then bfloat16, under the names
that Hugging Face gives them. transformers can read GGUF too, but needs a library
more, ten times as long, and does not know this tokenizer's rule for digits.
"""

import json
from pathlib import Path
from typing import Any, Final

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

_SPECIAL: Final = 3
"""The token type that GGUF gives to control tokens."""
_RMS_NORM_EPS: Final = 1e-5
"""GGUF keeps it as a float32, which reads back as 9.9999997e-06."""

_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Write weights, config and tokenizer of ``gguf_path`` into ``folder``."""
    reader = GGUFReader(gguf_path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    if (kind := metadata["general.architecture"]) != "llama":
        raise ValueError(f"{gguf_path} is of architecture {kind!r}, not llama")
    config = _config(metadata)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _pick(config, "bos", "eos", "pad"))
    _write_tokenizer(metadata, folder)
    _write_weights(reader, config, folder / "model.safetensors")


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    num_heads = metadata["llama.attention.head_count"]
    hidden_size = metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": hidden_size,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": _RMS_NORM_EPS,
        "rope_theta": metadata["llama.rope.freq_base"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _pick(config: dict[str, Any], *tokens: str) -> dict[str, Any]:
    return {f"{token}_token_id": config[f"{token}_token_id"] for token in tokens}


def _write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    pre = metadata["tokenizer.ggml.pre"]
    if pre != "smollm":
        raise ValueError(f"pre-tokenizer {pre!r} is not known")
    texts: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        BPE(vocab={text: index for index, text in enumerate(texts)}, merges=merges)
    )
    # What "smollm" stands for: each digit by itself, then GPT-2's rule.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, kind in zip(texts, types, strict=True)
            if kind == _SPECIAL
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": metadata["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "bos_token": texts[metadata["tokenizer.ggml.bos_token_id"]],
            "eos_token": texts[metadata["tokenizer.ggml.eos_token_id"]],
            "pad_token": texts[metadata["tokenizer.ggml.padding_token_id"]],
            "unk_token": texts[metadata["tokenizer.ggml.unknown_token_id"]],
            "chat_template": metadata["tokenizer.chat_template"],
        },
    )


def _write_weights(reader: GGUFReader, config: dict[str, Any], path: Path) -> None:
    tensors = {}
    for tensor in reader.tensors:
        weights = torch.tensor(dequantize(tensor.data, tensor.tensor_type))  # copies: it is mapped
        if tensor.name.endswith("attn_q.weight"):
            weights = _rotary_order(weights, config["num_attention_heads"])
        elif tensor.name.endswith("attn_k.weight"):
            weights = _rotary_order(weights, config["num_key_value_heads"])
        tensors[_name_of(tensor.name)] = weights.to(torch.bfloat16)
    save_file(tensors, path, metadata={"format": "pt"})


def _name_of(name: str) -> str:
    """Return the name in a Hugging Face folder of a tensor of a GGUF file."""
    match name.removesuffix(".weight").split("."):
        case ["blk", layer, part]:
            return f"model.layers.{layer}.{_NAMES[part]}.weight"
        case [part]:
            return f"{_NAMES[part]}.weight"
        case _:
            raise ValueError(f"tensor {name!r} is not known")


def _rotary_order(weights: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo GGUF's order of rows, in which the two halves of a rotated pair are neighbours."""
    rows, columns = weights.shape
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
