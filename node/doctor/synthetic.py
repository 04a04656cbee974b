"""A model of a few thousand random weights: shows that an engine works, and nothing else.

Written by hand in safetensors format, since this process loads no torch: a length, a header
in JSON, the numbers.
"""

import json
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np

VOCAB_SIZE: Final = 64
_HIDDEN: Final = 32
_INNER: Final = 64
_LAYERS: Final = 2
_HEADS: Final = 2
_STD: Final = 0.02
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": _HIDDEN,
    "intermediate_size": _INNER,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "dtype": "float32",
}


def write_model(folder: Path) -> None:
    """Write weights and config into ``folder``, which exists."""
    rng = np.random.default_rng(0)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, shape in _shapes().items():
        is_norm = len(shape) == 1
        values = np.ones(shape) if is_norm else rng.normal(0, _STD, shape)
        raw = values.astype("<f4").tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        data += raw
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    text = struct.pack("<Q", len(encoded)) + encoded + data
    (folder / "model.safetensors").write_bytes(text)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def _shapes() -> dict[str, tuple[int, ...]]:
    square, up, down = (_HIDDEN, _HIDDEN), (_INNER, _HIDDEN), (_HIDDEN, _INNER)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB_SIZE, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    for number in range(_LAYERS):
        layer = f"model.layers.{number}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{layer}.self_attn.{part}.weight"] = square
        shapes[f"{layer}.mlp.gate_proj.weight"] = up
        shapes[f"{layer}.mlp.up_proj.weight"] = up
        shapes[f"{layer}.mlp.down_proj.weight"] = down
        shapes[f"{layer}.input_layernorm.weight"] = (_HIDDEN,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (_HIDDEN,)
    return shapes
