"""Bitmaps of held chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.chunks import MAX_REPLY_BYTES, Chunk, bitmap_of, in_two_parts, indices_in
from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError
from protocols.manifest import MAX_CHUNK_BYTES, MAX_CHUNKS


@given(st.integers(1, 70).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_a_bitmap_names_the_chunks_it_was_made_of(case: tuple[int, set[int]]) -> None:
    num_chunks, held = case
    bitmap = bitmap_of(held, num_chunks=num_chunks)
    assert list(indices_in(bitmap, num_chunks=num_chunks)) == sorted(held)


def test_the_least_significant_bit_comes_first() -> None:
    assert bitmap_of([0, 9], num_chunks=10) == b"\x01\x02"


@pytest.mark.parametrize("bitmap", [b"", b"\0", b"\0\0\0", b"\0\x04", b"\0\xff"])
def test_a_bitmap_of_another_size_is_refused(bitmap: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        indices_in(bitmap, num_chunks=10)


@pytest.mark.parametrize("num_bytes", [1, 255, 256, 65_535, 65_536, MAX_CHUNK_BYTES])
@pytest.mark.parametrize("index", [0, 127, 128, MAX_CHUNKS - 1])
def test_a_chunk_in_two_parts_is_the_chunk_encoded(index: int, num_bytes: int) -> None:
    data = bytes(num_bytes)
    head, tail = in_two_parts(index, data)
    assert tail is data
    assert head + tail == encode(Chunk(index, memoryview(data)), max_bytes=MAX_REPLY_BYTES)


def test_the_data_of_a_chunk_is_a_view_of_what_came() -> None:
    frame = bytearray(b"".join(in_two_parts(3, b"weights")))
    chunk = decode(memoryview(frame), Chunk, max_bytes=MAX_REPLY_BYTES)
    frame[-1] = ord("!")
    assert bytes(chunk.data) == b"weight!"
