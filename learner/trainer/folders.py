"""Folders that are there as a whole or not at all, also after a power cut; without torch."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from echo2swarm.system.errors import DiskFullError, StoreError
from echo2swarm.system.files import is_full

STATE: Final = "state.json"
"""In a checkpoint: its step, and the size of each other file. Written last."""
CHECKPOINT_PREFIX: Final = "step-"


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``folder`` at the end, its files synced.

    Raises:
        DiskFullError: there is no room. Nothing is left then.
        StoreError: it exists, or the disk can't be written. Nothing is left then.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    if folder.exists():
        raise StoreError(f"{folder} exists; it is never overwritten")
    try:
        if partial.exists():
            shutil.rmtree(partial)  # a process died here
        partial.mkdir(parents=True)
        yield partial
        # Files of subfolders, too, and each folder after what is in it.
        for path in sorted(partial.rglob("*"), reverse=True):
            _sync(path)
        _sync(partial)
        partial.rename(folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as exc:
        shutil.rmtree(partial, ignore_errors=True)
        if is_full(exc):
            raise DiskFullError(f"can't write {folder}: {exc}; free some disk space") from exc
        raise StoreError(f"can't write {folder}: {exc}; see that it can be written") from exc
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Finish a checkpoint: note ``state`` and what files there are."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    (folder / STATE).write_text(json.dumps({**state, "files": sizes}, indent=1))


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the state that a checkpoint was finished with, or None if it is not whole."""
    try:
        state = json.loads((folder / STATE).read_bytes())
        if not isinstance(state["step"], int):
            return None
        whole = all((folder / name).stat().st_size == size for name, size in state["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return state if whole else None
