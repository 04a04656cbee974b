"""Folders that are made once, kept in the user's cache, and checked at each use."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR
from typing import Final

import platformdirs

from echo2swarm.system.errors import StoreError
from echo2swarm.system.files import sha256_of_file

CACHE_DIR_VARIABLE: Final = "ECHO2_CACHE_DIR"
_KERNEL_CACHES: Final = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""oneDNN's, and that of torch's layer above it."""
_KERNELS_KEPT: Final = "64"
SEAL: Final = ".sealed.json"
"""In a finished folder: size and SHA-256 of each of its files. Written last."""
_SMALL_BYTES: Final = 1 << 20
"""Files up to this size are hashed at each use; of larger ones only the size is looked at."""


def cache_dir() -> Path:
    """Return where things are kept that can be made again.

    Where there is no home directory that can be written, as in containers that run under any
    user id, it is a folder of this user's among the temporary ones.

    Raises:
        StoreError: none of them can be written.
    """
    override = os.environ.get(CACHE_DIR_VARIABLE)
    if override:
        return Path(override)
    usual = Path(platformdirs.user_cache_dir("echo2swarm"))
    # Without a home directory, the path begins with "~" still.
    return usual if usual.is_absolute() and _can_be_written(usual) else _temporary_cache()


def _can_be_written(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _temporary_cache() -> Path:
    """Return a folder that nobody else can write."""
    folder = Path(tempfile.gettempdir()) / f"echo2swarm-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        stat = folder.lstat()
        if S_ISDIR(stat.st_mode) and stat.st_uid == os.getuid() and not stat.st_mode & 0o022:
            return folder
    except OSError:
        pass
    raise StoreError(
        f"neither the home directory nor {folder} can be used for what is kept between runs; set "
        f"{CACHE_DIR_VARIABLE} to a folder that can be written"
    )


def torch_env() -> dict[str, str]:
    """Return what a process that loads torch needs to leave nothing in ``/tmp``, and to stay small.

    On CPUs, torch compiles a kernel for each shape that it meets in bfloat16, and keeps the last
    1024 of each of two kinds: hundreds of megabytes, where hardly a shape comes twice.

    Raises:
        StoreError: the cache can't be written.
    """
    folder = cache_dir() / "torch"
    if not _can_be_written(folder):
        raise StoreError(f"can't write {folder}; set {CACHE_DIR_VARIABLE} to a folder that can be")
    kept = {name: os.environ.get(name, _KERNELS_KEPT) for name in _KERNEL_CACHES}
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder), **kept}


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``, made by ``make`` if it is not there or is damaged.

    Two processes may call this at once: one makes it, the other waits.

    Args:
        folder: where the finished folder lies.
        make: fills an empty folder, which is then renamed to ``folder``.

    Raises:
        StoreError: the disk is full or can't be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            if not is_intact(folder):
                _make(folder, make)
    except OSError as exc:
        raise StoreError(
            f"can't write {folder}: {exc.strerror or exc}; "
            f"free some space, or set {CACHE_DIR_VARIABLE} to another folder"
        ) from exc
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    # We hold the lock, so both are leftovers.
    for leftover in (partial, folder):
        if leftover.exists():
            shutil.rmtree(leftover)
    partial.mkdir()
    try:
        make(partial)
        write_seal(partial)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_seal(folder: Path) -> None:
    """Write down what ``folder`` holds, for :func:`is_intact`."""
    files = {
        path.name: {"size_bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
        for path in sorted(folder.iterdir())
    }
    (folder / SEAL).write_text(json.dumps(files, indent=1))


def is_intact(folder: Path) -> bool:
    """Return whether ``folder`` still holds what it was sealed with, as far as is cheap to see."""
    try:
        files = json.loads((folder / SEAL).read_bytes())
        return all(
            (folder / name).stat().st_size == entry["size_bytes"]
            and (
                entry["size_bytes"] > _SMALL_BYTES
                or sha256_of_file(folder / name) == entry["sha256"]
            )
            for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder in the cache (on its disk, not in memory) that is gone afterwards."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=cache_dir()) as name:
        yield Path(name)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system gives back when this process ends, however it ends."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
