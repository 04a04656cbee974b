"""Byte strings whose length is known before they are read."""

import io

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.weights.delta.errors import BadDeltaError
from echo2swarm.weights.delta.sections import Compressor, Decompressor


def read(section: bytes, size_bytes: int) -> bytes:
    source = io.BytesIO(section)
    data = Decompressor().section(source, size_bytes)
    assert source.read() == b""
    return data


def framed(stored: bytes) -> bytes:
    return len(stored).to_bytes(4, "little") + stored


@given(st.one_of(st.binary(max_size=300), st.integers(0, 5000).map(bytes)), st.booleans())
def test_what_is_written_is_read(data: bytes, is_fast: bool) -> None:
    assert read(Compressor().section(data, is_fast=is_fast), len(data)) == data


def test_a_section_never_takes_more_room_than_its_bytes_and_its_length() -> None:
    noise = bytes(range(256))
    assert Compressor().section(noise) == framed(noise)
    assert len(Compressor().section(bytes(10_000))) < 100


def test_a_frame_that_would_become_longer_is_not_decompressed() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(200_000_000))
    assert len(bomb) < 30_000
    with pytest.raises(BadDeltaError, match="200000000 bytes where 30000 must be"):
        read(framed(bomb), 30_000)


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    honest = zstandard.ZstdCompressor().compress(bytes(5000))
    assert zstandard.frame_content_size(honest) == 5000
    lying = honest.replace((5000 - 256).to_bytes(2, "little"), (4000 - 256).to_bytes(2, "little"))
    assert zstandard.frame_content_size(lying) == 4000
    with pytest.raises(BadDeltaError, match="no zstd frame"):
        read(framed(lying), 4000)


def test_a_frame_that_does_not_state_its_size_is_refused() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5000))
    with pytest.raises(BadDeltaError, match="where 5000 must be"):
        read(framed(silent), 5000)


def test_bytes_after_a_frame_are_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(5000))
    with pytest.raises(BadDeltaError, match="no zstd frame"):
        read(framed(frame + b"x"), 5000)


@pytest.mark.parametrize(
    ("section", "why"),
    [(framed(b"abcd"), "4 bytes where 3"), (b"\1\0", "too early"), (framed(b"ab")[:-1], "early")],
)
def test_a_section_that_is_too_long_or_cut_short_is_refused(section: bytes, why: str) -> None:
    with pytest.raises(BadDeltaError, match=why):
        read(section, 3)
