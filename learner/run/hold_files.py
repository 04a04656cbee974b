"""Files that another process may delete, kept as long as this one needs them.

A run deletes its old checkpoints while somebody exports or evaluates one. Hard links take no
room, and keep what is in a file although its first name is gone. They stand in a folder that is
locked for as long as its owner lives, so that whoever comes later can tell it from one that a
process that was killed has left.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = ".held-"


@contextmanager
def hold_files(source: Path, names: Iterable[str], parents: Iterable[Path]) -> Iterator[Path]:
    """Yield a folder with files of ``source``: linked, or copied where that can't be.

    Args:
        source: where the files are.
        names: their paths in it.
        parents: folders in which to make that folder; the first that can be written is taken.

    Raises:
        FileNotFoundError: a file is gone.
        OSError: no parent can be written.
    """
    folder = _new_folder(parents)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source / name, target)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders in ``parent`` whose owner is gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else has removed it, or holds it
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _new_folder(parents: Iterable[Path]) -> Path:
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for parent in parents:
        remove_abandoned(parent)
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError as exc:
            failure = exc
    raise failure


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:  # of another user, or on a disk that has no links
        shutil.copyfile(path, target)
