"""Files of JSON lines: appended whole or not at all, and readable after a crash."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from echo2swarm.system.errors import StoreError


class JsonLines:
    """Appends records to a file, one JSON object per line, each at once in the hands of the kernel.

    A last line that a crash cut off is removed on opening: it was never whole.

    Args:
        path: of the file.
        max_bytes: of more, the file is put aside as ``NAME.1`` and a new one begun; never if None.
    """

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._fd = _open(path)

    @staticmethod
    def encode(record: Mapping[str, Any] | msgspec.Struct) -> bytes:
        """Return ``record`` as one line; NaN and infinities become null, unknown types text."""
        return msgspec.json.encode(record, enc_hook=str) + b"\n"

    def write(self, record: Mapping[str, Any] | msgspec.Struct) -> None:
        """Append one record.

        Raises:
            OSError: it could not be written (disk full, say); the file is as before.
        """
        self.write_raw(self.encode(record))

    def write_raw(self, line: bytes) -> None:
        """Append one line that is JSON already; see :meth:`write`."""
        data = line if line.endswith(b"\n") else line + b"\n"
        before = os.fstat(self._fd).st_size
        if self._max_bytes is not None and before and before + len(data) > self._max_bytes:
            self._put_aside()
            before = 0
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as exc:
            os.ftruncate(self._fd, before)
            exc.filename = exc.filename or str(self._path)
            raise

    def _put_aside(self) -> None:
        os.replace(self._path, aside(self._path))
        new = _open(self._path)
        os.close(self._fd)
        self._fd = new

    def close(self) -> None:
        """Close the file; writing is an error from then on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def aside(path: Path) -> Path:
    """Return where what was in ``path`` is put when that has become too long."""
    return path.with_name(f"{path.name}.1")


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, oldest first; a last line without its end is left out.

    The file may be appended to meanwhile.

    Raises:
        StoreError: there is no such file, or a whole line is not a JSON object.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    record = decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                    raise StoreError(f"{path}, line {number}: not a JSON object: {exc}") from None
                yield record
    except OSError as exc:
        raise StoreError(f"can't read {path}: {exc.strerror}") from exc


def _open(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, _whole_lines_bytes(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _whole_lines_bytes(fd: int) -> int:
    """Return where the last whole line of the file ends."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 65_536)
        block = os.pread(fd, end - start, start)
        if newline := block.rfind(b"\n") + 1:
            return start + newline
        end = start
    return 0
