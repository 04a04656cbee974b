"""Sampling from a tiny Llama, against a full recomputation without cache, padding or sharing."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.engine.messages import Completion
from node.engine.transformers_decode import Decoder, invert, plan_batches
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import pack_tokens, unpack_floats, unpack_tokens
from protocols.rollouts import FinishReason
from protocols.sampling import SamplingParams
from tests.node.engine.tiny_policy import VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.model

PREAMBLE = [7, 1, 9, 9, 2, 4, 8, 0, 6, 15]
PROMPTS = ([5], [1, 2, 3], [*PREAMBLE, 3], [*PREAMBLE, 4, 4], [*PREAMBLE, 3])


def groups_of(prompts: Sequence[Sequence[int]], num_samples: int) -> list[LeasedGroup]:
    return [
        LeasedGroup(
            i, pack_tokens(p), tuple(SampleSpec(j, 1000 * i + j) for j in range(num_samples))
        )
        for i, p in enumerate(prompts)
    ]


def sample(
    model_seed: int,
    groups: Sequence[LeasedGroup],
    sampling: SamplingParams,
    *,
    max_rows: int = 64,
    max_tokens: int = 4096,
) -> dict[tuple[int, int], Completion]:
    decoder = Decoder(tiny_model(model_seed))
    batches = plan_batches(
        groups, max_new_tokens=sampling.max_new_tokens, max_rows=max_rows, max_tokens=max_tokens
    )
    made = [c for batch in batches for c in decoder.sample(batch, sampling, version=3)]
    assert len(made) == sum(len(g.samples) for g in groups)
    return {(c.group_id, c.sample_index): c for c in made}


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[2:]], ids=["apart", "with a shared start"])
def test_logprobs_are_those_of_a_full_recomputation(prompts: Sequence[list[int]]) -> None:
    sampling = SamplingParams(temperature=0.7, max_new_tokens=9, stop_token_ids=(0,))

    made = sample(1, groups_of(prompts, 6), sampling)

    model = tiny_model(1)
    for (group_id, _), completion in made.items():
        tokens = unpack_tokens(completion.tokens)
        whole = torch.tensor([prompts[group_id] + tokens])
        logits = model(input_ids=whole).logits[0, len(prompts[group_id]) - 1 : -1]
        logprobs = torch.log_softmax(logits.float() / 0.7, dim=-1)
        expected = logprobs[range(len(tokens)), tokens].tolist()
        assert unpack_floats(completion.logprobs) == pytest.approx(expected, abs=1e-4)


def test_batching_changes_nothing() -> None:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=8, stop_token_ids=(0, 1))
    groups = groups_of(PROMPTS, 5)

    at_once = sample(2, groups, sampling)
    in_pieces = sample(2, groups, sampling, max_rows=3)
    within_memory = sample(2, groups, sampling, max_tokens=40)

    for key, completion in at_once.items():
        for other in (in_pieces[key], within_memory[key]):
            assert other.tokens == completion.tokens
            assert unpack_floats(other.logprobs) == pytest.approx(
                unpack_floats(completion.logprobs), abs=1e-4
            )


def test_completions_end_at_a_stop_token_or_at_the_limit() -> None:
    sampling = SamplingParams(temperature=1.5, max_new_tokens=5, stop_token_ids=(0, 1, 2))

    made = sample(3, groups_of(PROMPTS, 12), sampling).values()

    assert {c.finish_reason for c in made} == {FinishReason.STOP, FinishReason.LENGTH}
    for completion in made:
        tokens = unpack_tokens(completion.tokens)
        assert not set(tokens[:-1]) & {0, 1, 2}
        is_stopped = tokens[-1] in {0, 1, 2}
        assert (completion.finish_reason is FinishReason.STOP) == is_stopped
        assert is_stopped or len(tokens) == 5


def test_the_whole_distribution_is_sampled_at_its_temperature() -> None:
    """Pearson's chi-squared over first tokens; the seeds are fixed, so it can't flake."""
    sampling = SamplingParams(temperature=1.7, max_new_tokens=1, stop_token_ids=())
    num_samples = 4000
    group = LeasedGroup(
        0, pack_tokens([5, 6]), tuple(SampleSpec(i % 256, 7 * i) for i in range(num_samples))
    )

    counts = [0] * VOCAB_SIZE
    decoder = Decoder(tiny_model(4))
    for batch in plan_batches([group], max_new_tokens=1, max_rows=500, max_tokens=10**6):
        for completion in decoder.sample(batch, sampling, version=0):
            counts[unpack_tokens(completion.tokens)[0]] += 1

    logits = tiny_model(4)(input_ids=torch.tensor([[5, 6]])).logits[0, -1]
    expected = (torch.softmax(logits / 1.7, dim=-1) * num_samples).tolist()
    chi_squared = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    assert chi_squared < 37.7  # 0.1 % of honest samplers with 15 degrees of freedom exceed this


@pytest.mark.parametrize("vocab_size", [200, 256, 1000, 2048])
def test_the_drawn_token_is_the_first_whose_cumulative_probability_is_above(
    vocab_size: int,
) -> None:
    torch.manual_seed(vocab_size)
    logits = 3 * torch.randn(500, vocab_size)
    uniforms = torch.rand(500, dtype=torch.float64)

    tokens, logprobs = invert(logits, uniforms, 1.3)

    expected_logprobs = torch.log_softmax(logits.double() / 1.3, dim=-1)
    cumulative = expected_logprobs.exp().cumsum(dim=-1)
    expected = torch.searchsorted(cumulative, uniforms[:, None], right=True)[:, 0]
    # Rounding may move a boundary past a number drawn next to it.
    assert int((tokens != expected).sum()) <= 1
    assert torch.allclose(
        logprobs.double(), expected_logprobs.gather(1, tokens[:, None])[:, 0], atol=1e-5
    )


def test_logits_that_are_not_finite_make_no_rollout() -> None:
    model = tiny_model(5)
    model.get_output_embeddings().weight.data[4, 0] = float("nan")
    decoder = Decoder(model)
    (batch,) = plan_batches(groups_of([[1]], 2), max_new_tokens=2, max_rows=9, max_tokens=99)

    with pytest.raises(ArithmeticError, match="not finite"):
        decoder.sample(batch, SamplingParams(1.0, 2, ()), version=0)


@given(
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=8),
    num_samples=st.integers(1, 9),
    max_rows=st.integers(1, 20),
    max_tokens=st.integers(1, 200),
    max_new_tokens=st.integers(1, 20),
)
def test_plans_hold_every_sample_once_within_the_limits(
    prompts: list[list[int]],
    num_samples: int,
    max_rows: int,
    max_tokens: int,
    max_new_tokens: int,
) -> None:
    groups = groups_of(prompts, num_samples)

    batches = list(
        plan_batches(
            groups, max_new_tokens=max_new_tokens, max_rows=max_rows, max_tokens=max_tokens
        )
    )

    planned = [(batch.prompts[p], g, s) for batch in batches for p, g, s in batch.rows]
    wanted = [(tuple(prompts[g.group_id]), g.group_id, s) for g in groups for s in g.samples]
    assert sorted(planned, key=repr) == sorted(wanted, key=repr)
    for batch in batches:
        assert len(set(batch.prompts)) == len(batch.prompts)
        assert {p for p, _, _ in batch.rows} == set(range(len(batch.prompts)))
        assert len(batch.rows) <= max_rows
        width = max(map(len, batch.prompts)) + max_new_tokens
        assert len(batch.rows) == 1 or len(batch.rows) * width <= max_tokens
