"""How wide a number is in these weights: said by the header of a safetensors file."""

import struct
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

DEFAULT_BYTES: Final = 2
MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the format's own reader."""
_LENGTH: Final = struct.Struct("<Q")
_WORD_BYTES: Final = {"F64": 4, "F32": 4, "I32": 4, "U32": 4, "I64": 4, "U64": 4}
"""By type; all others count as two bytes wide."""


def word_bytes_of(path: Path) -> int:
    """Return 2 or 4, as most of the file's bytes are; 2 if it can't be told.

    A wrong answer costs compression, never correctness.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            return DEFAULT_BYTES
        (num_bytes,) = _LENGTH.unpack(start)
        if num_bytes > MAX_HEADER_BYTES:
            return DEFAULT_BYTES
        text = file.read(num_bytes)
    sizes: Counter[int] = Counter()
    try:
        for name, tensor in msgspec.json.decode(text, type=dict[str, Any]).items():
            if name != "__metadata__":
                first, last = tensor["data_offsets"]
                sizes[_WORD_BYTES.get(tensor["dtype"], DEFAULT_BYTES)] += int(last) - int(first)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError):
        return DEFAULT_BYTES
    return max(sizes, key=lambda width: (sizes[width], -width), default=DEFAULT_BYTES)
