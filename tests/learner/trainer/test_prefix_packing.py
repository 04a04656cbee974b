"""Rows that are prefix trees hold exactly what the samples hold."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer.prefix_packing import MicroBatch, PackedSample, make_micro_batches


def samples_of(pairs: Sequence[tuple[list[int], list[int]]]) -> list[PackedSample]:
    samples, first = [], 0
    for prompt, completion in pairs:
        samples.append(
            PackedSample(tokens=prompt + completion, num_prompt=len(prompt), first=first)
        )
        first += len(completion)
    return samples


# Few different tokens, so that samples have much in common, or all.
token = st.integers(0, 2)
pair = st.tuples(st.lists(token, min_size=1, max_size=6), st.lists(token, min_size=1, max_size=6))
batches = st.lists(pair, min_size=1, max_size=12).map(samples_of)


def what_predicts(batch: MicroBatch, source: int) -> list[int]:
    """Return the tokens that the flat position ``source`` sees, in the order of positions."""
    row, at = divmod(source, batch.tokens_BT.shape[1])
    seen = [j for j in range(at + 1) if batch.ends_BT[row, j] > at]
    assert batch.positions_BT[row, seen].tolist() == list(range(len(seen)))
    return [int(x) for x in batch.tokens_BT[row, seen]]


@given(batches, st.integers(1, 40), st.booleans())
def test_each_completion_token_is_predicted_once_from_exactly_the_tokens_before_it(
    samples: list[PackedSample], max_tokens: int, share_prefixes: bool
) -> None:
    expected = {
        sample.first + offset: (
            list(sample.tokens[: sample.num_prompt + offset]),
            sample.tokens[sample.num_prompt + offset],
        )
        for sample in samples
        for offset in range(sample.num_completion)
    }

    found = {}
    for batch in make_micro_batches(
        samples, max_tokens=max_tokens, hidden_size=8, share_prefixes=share_prefixes
    ):
        for at, target, index in zip(batch.source_M, batch.target_M, batch.index_M, strict=True):
            assert int(index) not in found
            seen = what_predicts(batch, int(batch.source_P[at]))
            found[int(index)] = (seen, int(target))

    assert found == expected


@given(batches, st.integers(1, 40))
def test_a_micro_batch_is_too_large_only_for_a_single_sample(
    samples: list[PackedSample], max_tokens: int
) -> None:
    for batch in make_micro_batches(
        samples, max_tokens=max_tokens, hidden_size=8, share_prefixes=True
    ):
        if batch.num_tokens > max_tokens:
            assert len(batch.lengths_B) == 1
            assert batch.positions_BT[0].tolist() == list(range(batch.num_tokens))


@given(batches)
def test_padding_sees_only_itself(samples: list[PackedSample]) -> None:
    for batch in make_micro_batches(samples, max_tokens=64, hidden_size=8, share_prefixes=False):
        for row, length in enumerate(batch.lengths_B):
            padding = np.arange(length, batch.tokens_BT.shape[1])
            assert (batch.ends_BT[row, padding] == padding + 1).all()
            assert (batch.ends_BT[row, :length] <= length).all()


@given(batches)
def test_sources_are_sorted_so_that_positions_can_be_taken_in_pieces(
    samples: list[PackedSample],
) -> None:
    for batch in make_micro_batches(samples, max_tokens=64, hidden_size=8, share_prefixes=True):
        assert (np.diff(batch.source_M) >= 0).all()
        assert (np.diff(batch.source_P) > 0).all()


def test_a_group_costs_its_prompt_once() -> None:
    prompt = list(range(100, 135))
    group = samples_of([(prompt, [k, 50, 51, 52, 53]) for k in range(8)])

    (shared,) = make_micro_batches(group, max_tokens=4096, hidden_size=576, share_prefixes=True)

    # The last token of each completion predicts nothing.
    assert shared.tokens_BT.shape == (1, 35 + 8 * 4)


def test_completions_that_begin_alike_share_their_beginning() -> None:
    batch = samples_of([([1, 2], [3, 4, 9]), ([1, 2], [3, 5, 9]), ([1, 2], [3, 4, 9])])

    (shared,) = make_micro_batches(batch, max_tokens=64, hidden_size=576, share_prefixes=True)

    assert shared.tokens_BT.tolist() == [[1, 2, 3, 4, 5]]
    assert shared.positions_BT.tolist() == [[0, 1, 2, 3, 3]]
    assert shared.ends_BT.tolist() == [[5, 5, 5, 4, 5]]


def test_samples_without_a_common_prefix_do_not_share_a_row() -> None:
    batch = samples_of([([1] * 20, [2, 3]), ([2] * 20, [2, 3])])

    (apart,) = make_micro_batches(batch, max_tokens=4096, hidden_size=8, share_prefixes=True)

    assert apart.tokens_BT.shape == (2, 21)


def test_short_rows_are_not_padded_to_much_longer_ones() -> None:
    batch = samples_of([([1] * 20, [2, 3]), ([2] * 4, [2, 3])])

    apart = make_micro_batches(batch, max_tokens=4096, hidden_size=8, share_prefixes=False)

    assert [micro.num_tokens for micro in apart] == [21, 5]
