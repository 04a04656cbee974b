"""Sampling completions from a causal language model, batched.

Dimensions in names: B rows (completions), P distinct prompts, T time, V vocabulary,
N blocks of K tokens of it.

Three things make it fast where completions are short: each distinct prompt is
prefilled once and its cache then copied to its completions; what all prompts
have in common at their start is prefilled once for all; and completions that
ended leave the batch.

Each completion draws from a generator of its own, one number per token, and
turns it into a token by the inverse of the cumulative distribution. So what is
sampled depends on the seed, the prompt and the weights, and not on the company
it is sampled in (but for rounding, which moves a boundary by about 1e-7).
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from node.engine.messages import Completion
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import pack_floats, pack_tokens, unpack_tokens
from protocols.rollouts import FinishReason
from protocols.sampling import SamplingParams

_ROWS_PER_SOFTMAX: Final = 64
"""Bounds the memory of whole distributions."""
_BLOCK: Final = 256
"""Tokens per block of the vocabulary, when sampling."""
_MIN_SHARED_PREFIX: Final = 8
"""A shorter common start is not worth a forward pass of its own."""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Completions that are decoded together."""

    prompts: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, int, SampleSpec], ...]
    """Of each completion: index of its prompt here, its group's id, and which one it is."""

    def halves(self) -> tuple["DecodeBatch", "DecodeBatch"]:
        """Return two batches of half as many completions; there must be two at the least."""
        middle = len(self.rows) // 2
        return self._part(self.rows[:middle]), self._part(self.rows[middle:])

    def _part(self, rows: tuple[tuple[int, int, SampleSpec], ...]) -> "DecodeBatch":
        used = sorted({index for index, _, _ in rows})
        new_index = {index: i for i, index in enumerate(used)}
        return DecodeBatch(
            tuple(self.prompts[index] for index in used),
            tuple((new_index[index], group_id, sample) for index, group_id, sample in rows),
        )

    def num_tokens(self, max_new_tokens: int) -> int:
        """Return how many tokens its cache may come to hold, padding included."""
        return len(self.rows) * (max(map(len, self.prompts)) + max_new_tokens)


@dataclass(slots=True)
class _Row:
    group_id: int
    sample: SampleSpec
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None


def plan_batches(
    groups: Sequence[LeasedGroup],
    *,
    max_new_tokens: int,
    max_rows: int,
    max_tokens: int,
) -> Iterator[DecodeBatch]:
    """Yield batches whose caches stay within the limits, prompts of like length together.

    A group is split only if it does not fit alone; a single completion always does.
    """
    ordered = sorted(
        ((tuple(unpack_tokens(group.prompt_tokens)), group) for group in groups),
        key=lambda pair: (len(pair[0]), pair[1].group_id),
    )
    prompts: dict[tuple[int, ...], int] = {}
    rows: list[tuple[int, int, SampleSpec]] = []
    for prompt, group in ordered:
        # Prompts come in order of length, so this one's is what the batch is padded to.
        room = max(1, min(max_rows, max_tokens // (len(prompt) + max_new_tokens)))
        samples = group.samples
        if rows and len(rows) + len(samples) > room:
            yield DecodeBatch(tuple(prompts), tuple(rows))
            prompts, rows = {}, []
        while samples:
            index = prompts.setdefault(prompt, len(prompts))
            taken, samples = samples[: room - len(rows)], samples[room - len(rows) :]
            rows.extend((index, group.group_id, sample) for sample in taken)
            if samples:
                yield DecodeBatch(tuple(prompts), tuple(rows))
                prompts, rows = {}, []
    if rows:
        yield DecodeBatch(tuple(prompts), tuple(rows))


class Decoder:
    """Samples from one model.

    Args:
        model: which.
        check_wanted: called before each token; raises if nobody wants the rest.
    """

    def __init__(
        self, model: PreTrainedModel, check_wanted: Callable[[], None] = lambda: None
    ) -> None:
        self._model = model
        self._check_wanted = check_wanted
        self._device = model.device
        # Transformers 5.24 renamed this argument of every model.
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    @torch.inference_mode()
    def sample(
        self, batch: DecodeBatch, sampling: SamplingParams, *, version: int
    ) -> list[Completion]:
        """Return one completion per row of ``batch``.

        Raises:
            ArithmeticError: the model's logits are not a distribution.
        """
        stops = frozenset(sampling.stop_token_ids)
        rows = [
            _Row(group_id, sample, torch.Generator().manual_seed(sample.seed))
            for _, group_id, sample in batch.rows
        ]
        cache, logits_PV, mask_PT = self._prefill(batch.prompts)
        prompt_of_B = self._indices([index for index, _, _ in batch.rows])
        cache.reorder_cache(prompt_of_B)
        logits_BV, mask_BT = logits_PV[prompt_of_B], mask_PT[prompt_of_B]
        live = list(rows)
        for num_sampled in range(1, sampling.max_new_tokens + 1):
            self._check_wanted()
            tokens_B = _sample(logits_BV, live, sampling.temperature)
            for row in live:
                if row.finish is not None:
                    continue
                if row.tokens[-1] in stops:
                    row.finish = FinishReason.STOP
                elif num_sampled == sampling.max_new_tokens:
                    row.finish = FinishReason.LENGTH
            going = [i for i, row in enumerate(live) if row.finish is None]
            if not going:
                break
            if len(live) - len(going) >= max(1, len(live) // 8):
                kept_B = self._indices(going)
                cache.reorder_cache(kept_B)
                tokens_B, mask_BT = tokens_B[kept_B], mask_BT[kept_B]
                live = [live[i] for i in going]
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(live), 1)], dim=1)
            logits_BV = self._forward(tokens_B[:, None], mask_BT, cache)
        return [_completion(row, version) for row in rows]

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[DynamicCache, Tensor, Tensor]:
        """Return cache, next-token logits and mask after each prompt."""
        cache = DynamicCache(config=self._model.config)
        mask_PT = torch.ones(len(prompts), 0, dtype=torch.long, device=self._device)
        # The padding between a shared start and the rest is masked by slot; a sliding window
        # would count it.
        is_plain = all(type(layer) is DynamicLayer for layer in cache.layers)
        shared = _common_start(prompts) if is_plain and len(prompts) > 1 else ()
        if len(shared) >= _MIN_SHARED_PREFIX:
            tokens_1T = torch.tensor([shared], device=self._device)
            self._forward(tokens_1T, torch.ones_like(tokens_1T), cache)
            cache.reorder_cache(self._indices([0] * len(prompts)))
            mask_PT = mask_PT.new_ones(len(prompts), len(shared))
            prompts = [prompt[len(shared) :] for prompt in prompts]
        width = max(map(len, prompts))
        if is_plain and self._device.type == "cpu":
            # On CPUs, torch's attention in bfloat16 is a third slower without a mask than with one.
            # Where nothing is masked there is none: so every prompt gets a slot that is.
            width += 1
        padded = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        is_token = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        mask_PT = torch.cat([mask_PT, torch.tensor(is_token, device=self._device)], dim=1)
        logits_PV = self._forward(torch.tensor(padded, device=self._device), mask_PT, cache)
        return cache, logits_PV, mask_PT

    def _forward(self, tokens_BT: Tensor, mask_BT: Tensor, cache: DynamicCache) -> Tensor:
        """Return the logits after the last of ``tokens_BT``; ``mask_BT`` covers the cache too."""
        positions_BT = (mask_BT.cumsum(dim=1) - 1).clamp(min=0)[:, -tokens_BT.shape[1] :]
        arguments: dict[str, Any] = {self._cache_argument: cache}
        output = self._model(
            input_ids=tokens_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            use_cache=True,
            logits_to_keep=1,
            **arguments,
        )
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV

    def _indices(self, indices: Sequence[int]) -> torch.LongTensor:
        tensor = torch.tensor(indices, dtype=torch.long, device=self._device)
        return cast("torch.LongTensor", tensor)


def _common_start(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the longest start of all prompts that leaves each at least one token."""
    num_shared = 0
    for column in zip(*(prompt[:-1] for prompt in prompts), strict=False):
        if len(set(column)) > 1:
            break
        num_shared += 1
    return prompts[0][:num_shared]


def _sample(logits_BV: Tensor, rows: Sequence[_Row], temperature: float) -> Tensor:
    """Draw a token for each row that is not finished, and return one for every row."""
    uniforms = [
        torch.rand((), generator=row.generator, dtype=torch.float64).item()
        if row.finish is None
        else 0.5
        for row in rows
    ]
    uniforms_B = torch.tensor(uniforms, dtype=torch.float64, device=logits_BV.device)
    drawn = [
        invert(
            logits_BV[start : start + _ROWS_PER_SOFTMAX],
            uniforms_B[start : start + _ROWS_PER_SOFTMAX],
            temperature,
        )
        for start in range(0, len(rows), _ROWS_PER_SOFTMAX)
    ]
    tokens_B, logprobs_B = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    # NaN and +inf anywhere in the logits, and a token of probability 0, all end here.
    if not bool(torch.isfinite(logprobs_B).all()):
        raise ArithmeticError("the policy's logits are not finite; nothing was sampled")
    for row, token, logprob in zip(rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
        if row.finish is None:
            row.tokens.append(token)
            row.logprobs.append(logprob)
    return tokens_B


def invert(logits_BV: Tensor, uniforms_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return tokens and their logprobs: the first whose cumulative probability is above.

    In two stages, which block of the vocabulary and which token of it: sums over a vocabulary
    need float64, and this way only those over blocks are.
    """
    logprobs_BV = torch.log_softmax(logits_BV.float() / temperature, dim=-1)
    vocab_size = logits_BV.shape[1]
    padding = -vocab_size % _BLOCK
    probs_BV = torch.nn.functional.pad(logprobs_BV.exp(), (0, padding))
    probs_BNK = probs_BV.view(len(logits_BV), -1, _BLOCK)
    above_BN = probs_BNK.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    wanted_B1 = (uniforms_B * above_BN[:, -1])[:, None]
    block_B1 = torch.searchsorted(above_BN, wanted_B1, right=True).clamp(max=above_BN.shape[1] - 1)
    below_B1 = torch.nn.functional.pad(above_BN, (1, 0)).gather(1, block_B1)
    block_BK = probs_BNK.take_along_dim(block_B1[..., None], dim=1)[:, 0]
    above_BK = block_BK.cumsum(dim=-1, dtype=torch.float64)
    within_B1 = torch.searchsorted(above_BK, wanted_B1 - below_B1, right=True).clamp(max=_BLOCK - 1)
    tokens_B1 = (block_B1 * _BLOCK + within_B1).clamp(max=vocab_size - 1)
    return tokens_B1[:, 0], logprobs_BV.gather(1, tokens_B1)[:, 0]


def _completion(row: _Row, version: int) -> Completion:
    assert row.finish is not None, "every row ends by max_new_tokens"  # noqa: S101
    return Completion(
        group_id=row.group_id,
        sample_index=row.sample.index,
        tokens=pack_tokens(row.tokens),
        logprobs=pack_floats(row.logprobs),
        finish_reason=row.finish,
        oldest_version=version,
        newest_version=version,
    )
