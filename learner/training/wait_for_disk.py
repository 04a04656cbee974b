"""A full disk makes the run wait, not end."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from echo2swarm.system.errors import ChildError, DiskFullError, SwarmError

RETRY_S: Final = 5.0
_START_BYTES: Final = 2 * 1024 * 1024
"""What a start writes before it waits for room itself: ledger, configuration, ticket."""

T = TypeVar("T")
log = structlog.get_logger()


def is_for_want_of_room(exc: BaseException) -> bool:
    """Whether there was no room left, here or in a child process."""
    if isinstance(exc, ChildError):
        return exc.error == DiskFullError.__name__
    return isinstance(exc, DiskFullError)


async def when_there_is_room(what: str, work: Callable[[], Awaitable[T]]) -> T:
    """Do ``work``, which leaves nothing behind if it fails, again until the disk has room.

    Args:
        what: for the log, as in ``weights``.
        work: raises an error of a full disk if that is why it failed; others are passed on.
    """
    is_pausing = False
    while True:
        try:
            result = await work()
        except SwarmError as exc:
            if not is_for_want_of_room(exc):
                raise
            if not is_pausing:
                log.error(
                    "disk.full",
                    what=what,
                    error=str(exc),
                    do="free some space; the run waits and then goes on by itself",
                )
            is_pausing = True
            await trio.sleep(RETRY_S)
        else:
            if is_pausing:
                log.info("disk.has_room", what=what)
            return result


async def until_there_is_room(folder: Path) -> None:
    """Wait until a run may start in ``folder``: what is written first does not wait for room."""

    async def look() -> None:
        if shutil.disk_usage(folder).free < _START_BYTES:
            raise DiskFullError(f"no space left on the disk of {folder}")

    await when_there_is_room("restart", look)
