"""Files one after the other, read and written as one long string of bytes."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from echo2swarm.weights.delta.errors import BadDeltaError


class ContentReader:
    """Reads files as if they were one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._todo = list(reversed(paths))
        self._files = ExitStack()
        self._open_next()

    def _open_next(self) -> None:
        self._files.close()
        if self._todo:
            self._file = self._files.enter_context(self._todo.pop().open("rb", buffering=0))

    def fill(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with what comes next.

        Raises:
            BadDeltaError: there is not so much.
            OSError: it can't be read.
        """
        while buffer:
            num_bytes = self._file.readinto(buffer)
            if num_bytes:
                buffer = buffer[num_bytes:]
            elif self._todo:
                self._open_next()
            else:
                raise BadDeltaError("the files are shorter than they should be")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        self._files.close()


class ContentWriter:
    """Writes files of given sizes as if they were one; makes them all, empty ones too."""

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        for path, _ in files:
            path.touch(exist_ok=False)
        self._todo = list(reversed(files))
        self._files = ExitStack()
        self._room = 0

    def write(self, data: memoryview) -> None:
        """Write what comes next.

        Raises:
            BadDeltaError: it is more than the files have room for.
            OSError: it can't be written.
        """
        while data:
            while not self._room:
                if not self._todo:
                    raise BadDeltaError("more bytes than the files have")
                self._files.close()
                path, self._room = self._todo.pop()
                self._file = self._files.enter_context(path.open("wb", buffering=0))
            num_bytes = self._file.write(data[: self._room])
            self._room -= num_bytes
            data = data[num_bytes:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        self._files.close()
