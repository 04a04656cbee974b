"""The tensors of a checkpoint on disk, whichever number of processes wrote them.

One process writes whole tensors, in files that load as a model: ``model*.safetensors`` with the
weights, ``optimizer.safetensors`` with the rest. Of several, each writes the rows that it holds::

    rank-00001-of-00002.model.safetensors       of the weights
    rank-00001-of-00002.exp_avg.safetensors     of one value of the optimizer; and so on

with, in each file's metadata, where the rows begin and how many there are in all. Any number of
processes can read either, each the rows that it needs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from echo2swarm.system.errors import StoreError

MODEL: Final = "model"
OPTIMIZER_FILE: Final = "optimizer.safetensors"
_ROWS: Final = "rows"
_RANK_FILE: Final = re.compile(r"rank-(\d{5})-of-(\d{5})\.(\w+)\.safetensors")


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Some rows of a tensor."""

    tensor: torch.Tensor
    start: int
    num_rows: int
    """Of the whole tensor; 0 where it has none and is whole."""


@dataclass(frozen=True, slots=True)
class _Piece:
    file: Any
    key: str
    start: int
    stop: int


def rank_file(rank: int, size: int, kind: str) -> str:
    """Return the name of what rank number ``rank`` writes of one kind."""
    return f"rank-{rank + 1:05d}-of-{size:05d}.{kind}.safetensors"


def write_rows(path: Path, tensors: Mapping[str, TensorRows]) -> None:
    """Write the rows that one process holds."""
    table = {name: [rows.start, rows.num_rows] for name, rows in tensors.items()}
    data = {name: rows.tensor for name, rows in tensors.items()}
    save_file(data, path, metadata={"format": "pt", _ROWS: json.dumps(table)})


class TensorFiles:
    """What :func:`open_stored` found."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._pieces: dict[tuple[str, str], list[_Piece]] = {}
        self._shapes: dict[tuple[str, str], tuple[int, ...]] = {}

    def kinds(self) -> set[str]:
        """Return what there is of the tensors: "model", and the optimizer's values."""
        return {kind for kind, _ in self._pieces}

    def shapes(self, kind: str = MODEL) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the whole tensors of a kind by their names, in their order."""
        return {name: self._shapes[kind, name] for of, name in sorted(self._pieces) if of == kind}

    def read(self, kind: str, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows of a tensor; all of them by default, and always of one that has none."""
        shape = self._shapes[kind, name]
        pieces = self._pieces[kind, name]
        if not shape:
            scalar: torch.Tensor = pieces[0].file.get_tensor(pieces[0].key)
            return scalar
        stop = shape[0] if stop is None else stop
        parts = [
            piece.file.get_slice(piece.key)[
                max(start, piece.start) - piece.start : min(stop, piece.stop) - piece.start
            ]
            for piece in pieces
            if piece.start < stop and start < piece.stop
        ]
        if not parts:
            empty: torch.Tensor = pieces[0].file.get_slice(pieces[0].key)[:0]
            return empty
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def add_whole(self, file: Any, key: str, kind: str, name: str) -> None:  # noqa: ANN401
        """Note a tensor that is all in one file."""
        shape = tuple(file.get_slice(key).get_shape())
        stop = shape[0] if shape else 0
        self._add(_Piece(file, key, 0, stop), kind, name, shape)

    def add_rows(self, file: Any, key: str, kind: str, *, start: int, num_rows: int) -> None:  # noqa: ANN401
        """Note rows of a tensor."""
        shape = tuple(file.get_slice(key).get_shape())
        stop = start + shape[0] if shape else 0
        if shape:
            shape = (num_rows, *shape[1:])
        self._add(_Piece(file, key, start, stop), kind, key, shape)

    def check(self) -> None:
        """See that no row is missing or there twice.

        Raises:
            StoreError: one is.
        """
        for (kind, name), pieces in self._pieces.items():
            pieces.sort(key=lambda piece: (piece.start, piece.stop))
            shape = self._shapes[kind, name]
            ends = [0, *(piece.stop for piece in pieces)]
            starts = [*(piece.start for piece in pieces), shape[0] if shape else 0]
            if ends != starts:
                raise StoreError(f"{self._where}: rows of {name} ({kind}) are missing or repeated")

    def _add(self, piece: _Piece, kind: str, name: str, shape: tuple[int, ...]) -> None:
        if self._shapes.setdefault((kind, name), shape) != shape:
            raise StoreError(f"{self._where}: the files do not agree on the shape of {name}")
        self._pieces.setdefault((kind, name), []).append(piece)


@contextmanager
def open_stored(folder: Path) -> Iterator[TensorFiles]:
    """Open the tensors in ``folder``, of which none is read yet.

    Raises:
        StoreError: a file can't be read, or something is missing.
    """
    stored = TensorFiles(str(folder))
    with ExitStack() as stack:
        try:
            _open_all(folder, stored, stack)
        except (OSError, SafetensorError, ValueError, KeyError) as exc:
            raise StoreError(f"{folder}: can't be read as a checkpoint: {exc}") from exc
        stored.check()
        if MODEL not in stored.kinds():
            raise StoreError(f"{folder}: no weights in it")
        yield stored


def _open_all(folder: Path, stored: TensorFiles, stack: ExitStack) -> None:
    sizes = set()
    for path in sorted(folder.glob("*.safetensors")):
        file = stack.enter_context(safe_open(path, framework="pt"))
        found = _RANK_FILE.fullmatch(path.name)
        if found is not None:
            sizes.add(int(found[2]))
            table = json.loads(file.metadata()[_ROWS])
            for key in file.keys():  # noqa: SIM118 - not a dict, and not iterable
                start, num_rows = table[key]
                stored.add_rows(file, key, found[3], start=start, num_rows=num_rows)
            continue
        for key in file.keys():  # noqa: SIM118
            kind, name = MODEL, key
            if path.name == OPTIMIZER_FILE:
                kind, _, name = key.rpartition("/") if "/" not in key else key.partition("/")
            stored.add_whole(file, key, kind, name)
    if len(sizes) > 1:
        raise StoreError(f"{folder}: files of {sorted(sizes)} processes are mixed")
