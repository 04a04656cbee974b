import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import MalformedMessageError
from protocols.packed import pack_floats, pack_tokens, unpack_floats, unpack_tokens
from protocols.reasons import Reason


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_token_ids_unpack_as_they_were_packed(tokens: list[int]) -> None:
    data = pack_tokens(tokens)

    assert len(data) == 4 * len(tokens)
    assert unpack_tokens(data) == tokens


@given(st.lists(st.floats(width=32), max_size=50))
def test_logprobs_unpack_as_they_were_packed(values: list[float]) -> None:
    unpacked = unpack_floats(pack_floats(values))

    assert len(unpacked) == len(values)
    assert all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(unpacked, values, strict=True)
    )


@given(st.binary(max_size=40))
def test_any_bytes_unpack_or_are_refused_for_their_shape(data: bytes) -> None:
    if len(data) % 4 == 0:
        assert len(unpack_tokens(data)) == len(unpack_floats(data)) == len(data) // 4
        return
    for unpack in (unpack_tokens, unpack_floats):
        with pytest.raises(MalformedMessageError, match="4-byte items") as caught:
            unpack(data)
        assert caught.value.reason is Reason.WRONG_SHAPE


def test_numbers_are_little_endian() -> None:
    assert pack_tokens([1]) == b"\x01\x00\x00\x00"
    assert pack_floats([-1.5]) == b"\x00\x00\xc0\xbf"
