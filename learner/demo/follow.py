"""Read what is appended to a file, line by line, as it is appended."""

from pathlib import Path
from typing import Any

import msgspec


class LineFollower:
    """Remembers how far a file was read; a line still being written is left for later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_bytes = 0

    def new_lines(self) -> list[bytes]:
        """Return the lines that were appended since the last call; none if there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset_bytes += len(whole)
        return whole.split(b"\n")[:-1]

    def new_text(self) -> list[str]:
        """Return the new lines as text."""
        return [line.decode(errors="replace") for line in self.new_lines()]

    def new_records(self) -> list[dict[str, Any]]:
        """Return the new lines as JSON objects."""
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in self.new_lines()]
