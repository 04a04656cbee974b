"""Bitmaps of held chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.chunks import bitmap_of, indices_in
from protocols.errors import MalformedMessageError


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
