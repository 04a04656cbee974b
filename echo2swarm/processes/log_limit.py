"""Keeps the log of a child from filling the disk: a user's code may print without end."""

import os
from pathlib import Path
from typing import Final, NoReturn

import structlog
import trio

MAX_LOG_BYTES: Final = 32 * 1024 * 1024
KEPT_BYTES: Final = 1024 * 1024
"""Of a log that has become too long, put aside."""
LOOK_S: Final = 5.0

log = structlog.get_logger()


async def limit_log(path: Path) -> NoReturn:
    """Look at a log now and then, and shorten it where need be.

    Its writer must append: what it writes next is then at the new end, not at the old place.
    """
    while True:
        await trio.sleep(LOOK_S)
        try:
            shorten(path)
        except OSError as exc:
            log.debug("log.not_shortened", path=str(path), error=str(exc))


def shorten(path: Path, *, max_bytes: int = MAX_LOG_BYTES, kept_bytes: int = KEPT_BYTES) -> bool:
    """Empty a file that is too long, and put its end aside as ``NAME.1``; return whether it was.

    Raises:
        OSError: it can't be done.
    """
    size = path.stat().st_size
    if size <= max_bytes:
        return False
    with path.open("rb") as file:
        file.seek(size - kept_bytes)
        end = file.read(kept_bytes)
    path.with_name(f"{path.name}.1").write_bytes(end)
    os.truncate(path, 0)
    return True
