import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import MalformedMessageError
from protocols.framing import HEADER_BYTES, FrameDecoder, frame, frame_length
from protocols.reasons import Reason

payloads = st.lists(st.binary(max_size=50), max_size=6)


@given(payloads, st.integers(1, 20))
def test_frames_come_out_whole_however_the_bytes_arrive(sent: list[bytes], size: int) -> None:
    wire = b"".join(map(frame, sent))
    decoder = FrameDecoder(max_bytes=50)

    received = [
        payload
        for start in range(0, len(wire), size)
        for payload in decoder.feed(wire[start : start + size])
    ]

    assert received == sent
    assert decoder.is_between_frames


@pytest.mark.parametrize("length", range(1, HEADER_BYTES + 3))
def test_an_end_in_the_middle_of_a_frame_is_seen(length: int) -> None:
    decoder = FrameDecoder(max_bytes=10)

    assert list(decoder.feed(frame(b"abc")[:length])) == []
    assert not decoder.is_between_frames


def test_a_frame_as_long_as_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert list(FrameDecoder(max_bytes=5).feed(frame(b"12345"))) == [b"12345"]
    with pytest.raises(MalformedMessageError, match="6 bytes announced, limit 5") as caught:
        list(FrameDecoder(max_bytes=5).feed(frame(b"123456")))
    assert caught.value.reason is Reason.TOO_LARGE


def test_a_length_over_the_limit_is_refused_from_its_header_alone() -> None:
    decoder = FrameDecoder(max_bytes=5)

    assert list(decoder.feed(b"\xff\xff\xff")) == []
    with pytest.raises(MalformedMessageError):
        list(decoder.feed(b"\xff"))


def test_after_a_length_over_the_limit_nothing_more_is_read() -> None:
    decoder = FrameDecoder(max_bytes=5)
    with pytest.raises(MalformedMessageError):
        list(decoder.feed(frame(b"123456")))

    with pytest.raises(MalformedMessageError):
        list(decoder.feed(frame(b"ok")))


def test_frames_before_a_length_over_the_limit_are_delivered() -> None:
    received: list[bytes] = []
    with pytest.raises(MalformedMessageError):
        received.extend(FrameDecoder(max_bytes=5).feed(frame(b"ok") + frame(b"123456")))

    assert received == [b"ok"]


def test_a_length_is_four_bytes_big_endian() -> None:
    assert frame(b"abc") == b"\x00\x00\x00\x03abc"
    assert frame_length(b"\x00\x01\x00\x02", max_bytes=2**20) == 65_538
