"""How fast a card generates, from its memory: where nobody has published what is needed.

Published throughputs of 4B and 8B models are for short answers and differ in everything else.
Rollouts of thousands of tokens are bound by reading weights and KV cache from memory::

    sequences = (0.9 memory - weights) / (context kv),   at most 256
    tokens/s  = efficiency * sequences / ((weights + sequences context kv) / bandwidth)

One efficiency for all cards, between what the published figures in ``CHECKS`` come out at.
"""

from dataclasses import dataclass
from typing import Final

EFFICIENCY: Final = 0.6
_USED_MEMORY: Final = 0.9
_MAX_SEQUENCES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """An accelerator, from its data sheet."""

    name: str
    memory_gb: float
    bandwidth_gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, from its configuration."""

    name: str
    weights_gb: float
    kv_bytes_per_token: float
    """Layers x KV heads x head size x 2 (keys and values) x 2 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A published throughput."""

    card: Card
    model: Model
    context: float
    """Mean length of a sequence while it is generated."""
    sequences: int | None
    """At once; None for as many as fit."""
    tokens_per_s: float
    source: str

    @property
    def efficiency(self) -> float:
        """The published figure as a share of what memory would allow."""
        ideal = ideal_tokens_per_s(
            self.card, self.model, context=self.context, sequences=self.sequences
        )
        return self.tokens_per_s / ideal


def ideal_tokens_per_s(
    card: Card, model: Model, *, context: float, sequences: int | None = None
) -> float:
    """Return what the card's memory allows."""
    sequence_gb = context * model.kv_bytes_per_token / 1e9
    room = int((_USED_MEMORY * card.memory_gb - model.weights_gb) / sequence_gb)
    number = max(1, min(_MAX_SEQUENCES if sequences is None else sequences, room))
    step_s = (model.weights_gb + number * sequence_gb) / card.bandwidth_gb_per_s
    return number / step_s


def tokens_per_s(card: Card, model: Model, *, context: float) -> float:
    """Return what is assumed of a card."""
    return EFFICIENCY * ideal_tokens_per_s(card, model, context=context)


RTX_4090: Final = Card(name="RTX 4090", memory_gb=24, bandwidth_gb_per_s=1008)
RTX_5090: Final = Card(name="RTX 5090", memory_gb=32, bandwidth_gb_per_s=1792)
A100: Final = Card(name="A100 SXM 80 GB", memory_gb=80, bandwidth_gb_per_s=2039)
H100: Final = Card(name="H100 SXM 80 GB", memory_gb=80, bandwidth_gb_per_s=3350)

QWEN3_4B: Final = Model(name="Qwen3-4B", weights_gb=8.04, kv_bytes_per_token=147_456)
QWEN3_8B: Final = Model(name="Qwen3-8B", weights_gb=16.38, kv_bytes_per_token=147_456)
_QWEN3_8B_FP8: Final = Model(name="Qwen3-8B, FP8", weights_gb=8.9, kv_bytes_per_token=147_456)
_LLAMA_8B: Final = Model(name="Llama 8B", weights_gb=16.06, kv_bytes_per_token=131_072)

CHECKS: Final = (
    Check(
        card=RTX_4090,
        model=_LLAMA_8B,
        context=100 + 600 / 2,
        sequences=None,
        tokens_per_s=3.96 * 600,
        source="databasemart.com, vLLM, DeepSeek-R1-Distill-Llama-8B, 100 + 600 tokens: 3.96 req/s",
    ),
    Check(
        card=H100,
        model=QWEN3_8B,
        context=128 + 1024 / 2,
        sequences=396,
        tokens_per_s=13_322,
        source="silybench-data, vLLM 0.30, 2026-09-24, bf16, decode-128-1024, 396 users",
    ),
    Check(
        card=H100,
        model=_QWEN3_8B_FP8,
        context=2048 + 2048 / 2,
        sequences=128,
        tokens_per_s=4_428,
        source="silybench-data, vLLM 0.30, 2026-09-24, FP8, balanced-2048-2048, 128 users",
    ),
)
