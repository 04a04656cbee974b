"""Small things about files that must survive: whole or not at all, synced, room or none."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Final

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(exc: BaseException) -> bool:
    """Whether an error means that there is no room left (for us)."""
    if isinstance(exc, OSError) and exc.errno is not None:
        return exc.errno in _FULL
    # Libraries in other languages pass on only what the system says.
    return "No space left on device" in str(exc)


def write_atomically(path: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Write a file so that readers see all of it or the one before.

    Raises:
        OSError: it can't be written; no draft is left.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as exc:
        temporary.unlink(missing_ok=True)
        # A write that fails, unlike an open, does not say of which file.
        exc.filename = exc.filename or str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Make what was renamed or made in ``folder`` survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
