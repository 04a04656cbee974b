"""Which state directories nodes of this user run in, so that ``status`` finds them all.

One small file per running node, in a folder that only the user may enter. A node that was
killed leaves its file behind: whoever reads them asks the node, and so finds out.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

_MAX_FILE_BYTES: Final = 4096
_MAX_NODES: Final = 64

log = structlog.get_logger()


@contextmanager
def registered(folder: Path | None, state_dir: Path) -> Iterator[None]:
    """Be findable for the length of the context; what fails is no reason not to run."""
    if folder is None:
        yield
        return
    path = folder / hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:16]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(state_dir))
    except OSError as exc:
        log.info("node.not_registered", error=str(exc), next="name it with --state-dir")
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        except OSError as exc:
            log.debug("node.not_unregistered", error=str(exc))


def registered_in(folder: Path) -> list[Path]:
    """Return the state directories that are registered, in a stable order."""
    found: list[Path] = []
    try:
        paths = sorted(folder.iterdir())[:_MAX_NODES]
    except OSError:
        return []
    for path in paths:
        try:
            if path.stat().st_size <= _MAX_FILE_BYTES:
                found.append(Path(os.fsdecode(path.read_bytes())))
        except OSError:
            continue
    return sorted(set(found))


def forget(folder: Path, state_dir: Path) -> None:
    """Remove what a node that was killed left behind."""
    path = folder / hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:16]
    path.unlink(missing_ok=True)
