"""Prefix trees through real models: the same numbers as one row per sample."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from echo2swarm.system.errors import ConfigError
from learner.trainer.policy import Policy, load_model
from learner.trainer.prefix_packing import PackedSample, make_micro_batches
from tests.learner.trainer.model_inputs import plain_logprobs, random_samples
from tests.tiny_model import TINY_MODEL_DIR

pytestmark = pytest.mark.model

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE),
}


def model_of(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    assert isinstance(model, PreTrainedModel)
    return model


def policy_of(config: PretrainedConfig, *, autocast: torch.dtype | None = None) -> Policy:
    return Policy(model_of(config), temperature=1.0, autocast=autocast)


def logprobs_of(
    policy: Policy, samples: list[PackedSample], *, max_tokens: int = 256
) -> torch.Tensor:
    logprobs_N = torch.zeros(sum(sample.num_completion for sample in samples))
    for batch in make_micro_batches(
        samples,
        max_tokens=max_tokens,
        hidden_size=policy.hidden_size,
        share_prefixes=policy.shares_prefixes,
    ):
        logprobs_N = logprobs_N.index_put(
            (torch.from_numpy(batch.index_M),), policy.logprobs(batch)
        )
    return logprobs_N


def gradients(model: PreTrainedModel, logprobs_N: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    # Some function whose gradient weighs each token differently.
    (logprobs_N * torch.linspace(-1, 1, len(logprobs_N))).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_tokens", [256, 12])
def test_sharing_prefixes_changes_neither_logprobs_nor_gradients(
    family: str, max_tokens: int
) -> None:
    policy = policy_of(FAMILIES[family])
    samples = random_samples(1, vocab_size=40)
    assert policy.shares_prefixes

    shared = logprobs_of(policy, samples, max_tokens=max_tokens)
    plain = plain_logprobs(policy.model, samples)

    torch.testing.assert_close(shared, plain, rtol=0, atol=1e-5)
    expected = gradients(policy.model, plain)
    difference = (gradients(policy.model, shared) - expected).norm() / expected.norm()
    assert difference < 1e-4


def test_the_tiny_model_shares_prefixes() -> None:
    model = load_model(TINY_MODEL_DIR, device=torch.device("cpu"))
    policy = Policy(model, temperature=0.7, autocast=None)
    samples = random_samples(2)

    with torch.no_grad():
        shared = logprobs_of(policy, samples)
        plain = plain_logprobs(model, samples, temperature=0.7)

    assert policy.shares_prefixes
    torch.testing.assert_close(shared, plain, rtol=0, atol=1e-5)


def test_a_folder_that_holds_no_model_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(ConfigError, match=r"^the model in .* can't be loaded: [^\n]*$"):
        load_model(tmp_path, device=torch.device("cpu"))


def test_a_model_with_sliding_windows_gets_rows_of_its_own() -> None:
    policy = policy_of(MistralConfig(**SHAPE, sliding_window=4))
    samples = random_samples(3, vocab_size=40)

    with torch.no_grad():
        found = logprobs_of(policy, samples)
        plain = plain_logprobs(policy.model, samples)

    assert not policy.shares_prefixes
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-5)


def test_a_model_with_more_after_its_last_layer_gets_rows_of_its_own() -> None:
    class Scaled(LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 0.5
            return output

    torch.manual_seed(0)
    model = Scaled(LlamaConfig(**SHAPE))
    policy = Policy(model, temperature=1.0, autocast=None)
    samples = random_samples(4, vocab_size=40)

    with torch.no_grad():
        found = logprobs_of(policy, samples)
        plain = plain_logprobs(model, samples)

    assert not policy.shares_prefixes
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-5)


def test_bfloat16_gives_nearly_the_same_logprobs_from_float32_weights() -> None:
    samples = random_samples(5, vocab_size=40)
    config = LlamaConfig(**{**SHAPE, "initializer_range": 0.05})

    with torch.no_grad():
        exact = logprobs_of(policy_of(config), samples)
        policy = policy_of(config, autocast=torch.bfloat16)
        rounded = logprobs_of(policy, samples)

    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert 0 < (exact - rounded).abs().max() < 0.05
