"""Tiny Llama policies, made where a test needs them."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from node.engine.base import PolicyFiles
from protocols.ids import PolicyVersion

VOCAB_SIZE = 16


def tiny_model(seed: int, *, is_tied: bool = True) -> LlamaForCausalLM:
    """Return a random model whose distributions are far from uniform."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        # Heads of 32: the smallest that every engine has kernels for.
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.2,
        tie_word_embeddings=is_tied,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.train(False)
    return model


def state_of(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Return the weights as they are published: tied ones once."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def write_policy(
    folder: Path,
    version: int,
    model: LlamaForCausalLM,
    state: dict[str, torch.Tensor] | None = None,
) -> PolicyFiles:
    """Write a version as the node holds it: config in one folder, weights in another."""
    assets, weights = folder / "assets", folder / f"weights-{version}"
    assets.mkdir(exist_ok=True)
    weights.mkdir()
    model.config.save_pretrained(assets)
    save_file(state_of(model) if state is None else state, weights / "model.safetensors")
    return PolicyFiles(version=PolicyVersion(version), weights_dir=weights, assets_dir=assets)
