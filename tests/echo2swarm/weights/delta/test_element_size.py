"""How wide a number is, as a safetensors file says."""

import json
import struct
from pathlib import Path

import pytest

from echo2swarm.weights.delta.element_size import word_bytes_of


def safetensors(path: Path, **sizes: int) -> Path:
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for dtype, size in sizes.items():
        header[dtype] = {"dtype": dtype, "shape": [size], "data_offsets": [offset, offset + size]}  # type: ignore[dict-item]
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))
    return path


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"BF16": 10}, 2),
        ({"F16": 10}, 2),
        ({"F32": 10}, 4),
        ({"BF16": 30, "F32": 20}, 2),
        ({"BF16": 20, "F32": 30}, 4),
        ({"I8": 10}, 2),
        ({}, 2),
    ],
)
def test_the_width_is_that_of_most_bytes(
    tmp_path: Path, sizes: dict[str, int], expected: int
) -> None:
    assert word_bytes_of(safetensors(tmp_path / "w", **sizes)) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 9) + b'{"a": {}}',
        struct.pack("<Q", 8) + b'{"a": 1}',
    ],
)
def test_a_file_that_is_something_else_is_taken_for_the_usual(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "w").write_bytes(data)
    assert word_bytes_of(tmp_path / "w") == 2
