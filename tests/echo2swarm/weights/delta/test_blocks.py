"""What changed in one block, as arrays and as bytes."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.weights.delta.blocks import (
    BlockKind,
    Change,
    Dense,
    Sparse,
    apply,
    change_between,
    decode_block,
    encode_block,
    merged,
    word_type,
)
from echo2swarm.weights.delta.errors import BadDeltaError
from echo2swarm.weights.delta.sections import Compressor, Decompressor

NUM_ITEMS = 512
WORDS = st.sampled_from([2, 4])
SHARES = st.sampled_from([0.0, 0.0005, 0.01, 0.2, 0.5, 1.0])


def block(seed: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.random.default_rng(seed).integers(0, 2**63, NUM_ITEMS, np.uint64)


def near(
    old: "np.ndarray[tuple[int], np.dtype[np.uint64]]", word_bytes: int, share: float, seed: int
) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    rng, new = np.random.default_rng(seed), old.copy()
    words = new.view(word_type(word_bytes))
    where = rng.random(words.size) < share
    words[where] ^= rng.integers(1, 2 ** (8 * word_bytes) - 1, int(where.sum())).astype(words.dtype)
    return new


def between(
    old: "np.ndarray[tuple[int], np.dtype[np.uint64]]",
    new: "np.ndarray[tuple[int], np.dtype[np.uint64]]",
    word_bytes: int,
) -> Change:
    num_words = 8 * NUM_ITEMS // word_bytes
    return change_between(old.copy(), new, num_words=num_words, word_bytes=word_bytes)


def round_trip(change: Change, word_bytes: int) -> Change:
    source = io.BytesIO(encode_block(change, Compressor()))
    again = decode_block(
        source, Decompressor(), num_words=8 * NUM_ITEMS // word_bytes, word_bytes=word_bytes
    )
    assert source.read() == b""
    return again


@given(WORDS, SHARES, st.integers(0, 1000))
def test_a_change_leads_from_old_to_new_after_encoding_and_decoding(
    word_bytes: int, share: float, seed: int
) -> None:
    old = block(seed)
    new = near(old, word_bytes, share, seed + 1)
    change = round_trip(between(old, new, word_bytes), word_bytes)

    apply(change, old.view(word_type(word_bytes)))

    assert np.array_equal(old, new)


@given(WORDS, SHARES, SHARES, st.integers(0, 1000))
def test_two_changes_merged_do_what_one_after_the_other_does(
    word_bytes: int, first_share: float, second_share: float, seed: int
) -> None:
    old = block(seed)
    middle = near(old, word_bytes, first_share, seed + 1)
    new = near(middle, word_bytes, second_share, seed + 2)
    first = between(old, middle, word_bytes)
    second = between(middle, new, word_bytes)

    both = round_trip(merged(first, second, num_words=8 * NUM_ITEMS // word_bytes), word_bytes)

    apply(both, old.view(word_type(word_bytes)))
    assert np.array_equal(old, new)


@given(WORDS, SHARES, st.integers(0, 1000))
def test_a_change_and_its_reverse_cancel_to_nothing(
    word_bytes: int, share: float, seed: int
) -> None:
    old = block(seed)
    new = near(old, word_bytes, share, seed + 1)
    there = between(old, new, word_bytes)
    back = between(new, old, word_bytes)

    both = merged(there, back, num_words=8 * NUM_ITEMS // word_bytes)
    assert encode_block(both, Compressor()) == bytes((BlockKind.SAME,))


@pytest.mark.parametrize(
    ("share", "kind"), [(0.0, BlockKind.SAME), (0.01, BlockKind.SPARSE), (0.9, BlockKind.DENSE)]
)
def test_the_kind_of_record_follows_from_how_much_changed(share: float, kind: BlockKind) -> None:
    old = block(1)
    change = between(old, near(old, 2, share, 2), 2)
    assert encode_block(change, Compressor())[0] == kind


@pytest.mark.parametrize("distance", [0, 1, 253, 254, 255, 256, 509, 510, 511, 2047])
def test_gaps_of_any_length_are_kept(distance: int) -> None:
    positions = np.array([distance], np.int32)
    change = round_trip(Sparse(positions, np.array([7], np.uint16)), 2)
    assert isinstance(change, Sparse)
    assert change.positions.tolist() == [distance]
    assert change.values.tolist() == [7]


def sparse_record(gaps: bytes, num_changed: int) -> bytes:
    plane = (num_changed).to_bytes(4, "little") + bytes(num_changed)
    head = num_changed.to_bytes(4, "little") + len(gaps).to_bytes(4, "little")
    return bytes((BlockKind.SPARSE,)) + head + len(gaps).to_bytes(4, "little") + gaps + 2 * plane


def read(record: bytes, num_words: int = 100) -> Change:
    return decode_block(io.BytesIO(record), Decompressor(), num_words=num_words, word_bytes=2)


def test_a_record_made_by_hand_from_the_specification_is_read() -> None:
    change = read(sparse_record(bytes([0, 3, 90]), 3))
    assert isinstance(change, Sparse)
    assert change.positions.tolist() == [0, 4, 95]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (bytes((9,)), "kind 9"),
        (b"", "too early"),
        (sparse_record(bytes([99, 0]), 2), "beyond the end"),
        (sparse_record(bytes([255]), 1), "beyond the end"),
        (sparse_record(bytes([1, 2]), 1), "beyond the end"),
        (sparse_record(bytes([1, 255]), 2), "beyond the end"),
        (sparse_record(b"", 0), "0 changes in 0 gaps"),
        (sparse_record(bytes([1]), 2), "2 changes in 1 gaps"),
        (sparse_record(bytes(101), 101), "among 100 words"),
        (sparse_record(bytes([1, 2]), 2)[:-1], "too early"),
        (bytes((BlockKind.DENSE,)) + (101).to_bytes(4, "little") + bytes(101), "100 are the most"),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(record: bytes, why: str) -> None:
    with pytest.raises(BadDeltaError, match=why):
        read(record)


@given(st.binary(max_size=60))
def test_garbage_raises_nothing_but_a_bad_delta(data: bytes) -> None:
    try:
        change = read(data)
    except BadDeltaError:
        return
    apply(change, np.zeros(100, np.uint16))


@given(st.data())
def test_a_damaged_record_is_refused_or_stays_within_its_block(data: st.DataObject) -> None:
    old = block(3)
    record = bytearray(encode_block(between(old, near(old, 2, 0.05, 4), 2), Compressor()))
    where = data.draw(st.integers(0, len(record) - 1))
    record[where] ^= data.draw(st.integers(1, 255))
    words = np.zeros(4 * NUM_ITEMS, np.uint16)
    try:
        change = read(bytes(record), num_words=words.size)
    except BadDeltaError:
        return
    assert isinstance(change, Dense | Sparse)
    apply(change, words)
