"""Weights and deltas for tests."""

import random
from itertools import pairwise
from pathlib import Path

from echo2swarm.weights.delta.compute import compose, diff, patch

BASE = b"b" * 32
NEXT = b"n" * 32
LAST = b"l" * 32
BLOCK_BYTES = 4096


def random_bytes(size: int, *, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def changed(data: bytes, *, share: float, word_bytes: int = 2, seed: int = 0) -> bytes:
    """Return ``data`` with about this share of its words a little different."""
    rng, result = random.Random(seed), bytearray(data)
    num_words = len(data) // word_bytes
    for _ in range(int(share * num_words)):
        result[word_bytes * rng.randrange(num_words)] ^= rng.choice((1, 1, 1, 3, 7))
    return bytes(result)


def write(folder: Path, parts: list[bytes]) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{number}.safetensors" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    return paths


def cut(data: bytes, *, at: list[int]) -> list[bytes]:
    """Return ``data`` in parts that end at these offsets."""
    edges = [0, *sorted(min(a, len(data)) for a in at), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def make_delta(
    target: Path,
    old: list[Path],
    new: list[Path],
    *,
    word_bytes: int = 2,
    base_root: bytes = BASE,
    result_root: bytes = NEXT,
    max_bytes: int = 10**9,
    block_bytes: int = BLOCK_BYTES,
) -> Path:
    for _ in diff(
        old,
        new,
        target,
        size_bytes=sum(path.stat().st_size for path in old),
        word_bytes=word_bytes,
        base_root=base_root,
        result_root=result_root,
        max_bytes=max_bytes,
        block_bytes=block_bytes,
    ):
        pass
    return target


def merge_deltas(target: Path, first: Path, second: Path, *, max_bytes: int = 10**9) -> Path:
    for _ in compose(first, second, target, max_bytes=max_bytes):
        pass
    return target


def apply_delta(
    folder: Path,
    delta: Path,
    old: list[Path],
    *,
    base_root: bytes = BASE,
    result_root: bytes = NEXT,
) -> bytes:
    """Return what comes of a delta; it was written to ``folder`` and seen by the hasher too."""
    folder.mkdir()
    seen = bytearray()
    files = [(folder / path.name, path.stat().st_size) for path in old]
    for _ in patch(
        delta, old, files, base_root=base_root, result_root=result_root, on_bytes=seen.extend
    ):
        pass
    written = b"".join(path.read_bytes() for path, _ in files)
    assert written == bytes(seen)
    return written
