"""Batches over ranks: every micro-batch once, as many rounds for each, none much longer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer.prefix_packing import MicroBatch, PackedSample, make_micro_batches
from learner.trainer.rank_batches import blank, spread_over_ranks


def rounds_of(lengths: list[int], *, num_ranks: int, max_tokens: int) -> list[list[MicroBatch]]:
    samples, first = [], 0
    for number, length in enumerate(lengths):
        samples.append(PackedSample(tokens=[number] * (length + 1), num_prompt=1, first=first))
        first += length

    def make(limit: int) -> list[MicroBatch]:
        return make_micro_batches(samples, max_tokens=limit, hidden_size=64, share_prefixes=True)

    return spread_over_ranks(make, max_tokens=max_tokens, num_ranks=num_ranks)


@given(
    lengths=st.lists(st.integers(1, 60), max_size=30),
    num_ranks=st.integers(1, 5),
    max_tokens=st.integers(1, 200),
)
def test_every_token_is_computed_by_one_rank_and_all_have_as_many_rounds(
    lengths: list[int], num_ranks: int, max_tokens: int
) -> None:
    rounds = rounds_of(lengths, num_ranks=num_ranks, max_tokens=max_tokens)

    assert all(len(micro_batches) == num_ranks for micro_batches in rounds)
    indices = [int(i) for made in rounds for micro in made for i in micro.index_M]
    assert sorted(indices) == list(range(sum(lengths)))
    for micro in (micro for made in rounds for micro in made):
        assert micro.num_tokens <= max(max_tokens, *lengths)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_batch_that_would_fit_into_one_pass_is_shared_by_all_ranks(num_ranks: int) -> None:
    rounds = rounds_of([20] * 64, num_ranks=num_ranks, max_tokens=100_000)

    assert len(rounds) == 1
    sizes = [micro.num_tokens for micro in rounds[0]]
    assert max(sizes) <= 1.3 * 64 * 20 / num_ranks


def test_long_and_short_ones_do_not_wait_for_each_other() -> None:
    rounds = rounds_of([50, 5] * 8, num_ranks=2, max_tokens=50)

    longest = sum(max(micro.num_tokens for micro in made) for made in rounds)
    assert longest <= 1.1 * sum(micro.num_tokens for made in rounds for micro in made) / 2


def test_a_blank_teaches_nothing() -> None:
    assert blank().num_tokens == 1
    assert blank().index_M.size == blank().target_M.size == 0
