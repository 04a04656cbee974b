"""Who this participant is: an Ed25519 key in a file that only its owner can read.

The file is a key: whoever has it can pass for this participant. It is locked
while in use, because two processes under one identity would be one peer in two
places, and each would break the other's connections.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.system.errors import StoreError
from protocols.ids import PeerId, peer_id_of

_MAGIC: Final = b"echo2-identity-1\n"
_KEY_BYTES: Final = 32
_FILE_BYTES: Final = len(_MAGIC) + _KEY_BYTES
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and the peer id that follows from it."""

    key: Ed25519PrivateKey = field(repr=False)
    peer: PeerId

    @classmethod
    def of(cls, key: Ed25519PrivateKey) -> "Identity":
        """Return the identity that ``key`` is."""
        return cls(key, peer_id_of(key.public_key()))


@contextmanager
def hold_identity(path: Path) -> Iterator[Identity]:
    """Load the identity in ``path``, made new if there is none, and lock it for the context.

    Raises:
        StoreError: the file is damaged, readable by others, in use by another
            process, or can't be read or written; the message says what to do.
    """
    with _opened(path) as file:
        # The system releases the lock if this process dies.
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"identity {path} is in use by another process on this machine; "
                "stop it, or give this one a folder of its own (a node: --state-dir)"
            ) from None
        yield _read(file, path)


def load_or_create(path: Path) -> Identity:
    """Load the identity in ``path``, made new if there is none, without locking it.

    Raises:
        StoreError: the file is damaged, readable by others, or can't be read or written.
    """
    with _opened(path) as file:
        return _read(file, path)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        _make_folder(path.parent)
        if not os.path.lexists(path):
            _create(path)
        file = _open(path)
    except OSError as exc:
        raise StoreError(
            f"can't use identity file {path}: {exc.strerror or exc}; "
            "check the folder, or name another with --state-dir"
        ) from exc
    with file:
        yield file


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)


def _create(path: Path) -> None:
    """Write a new key so that the file is whole or not there, and never overwritten."""
    data = _MAGIC + Ed25519PrivateKey.generate().private_bytes_raw()
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link fails if another process was faster: its key counts.
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> BinaryIO:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise StoreError(f"identity file {path} is a link; put the file itself there") from None
        if exc.errno == errno.EISDIR:
            raise StoreError(f"identity {path} is a folder; name a file") from None
        raise
    return os.fdopen(descriptor, "r+b")


def _read(file: BinaryIO, path: Path) -> Identity:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"identity {path} is not a file; remove it, and a new one is made")
    if status.st_mode & 0o077:
        raise StoreError(
            f"identity file {path} can be read by others (mode {status.st_mode & 0o777:04o}); "
            f"if nobody else had access, run: chmod 600 '{path}'"
        )
    data = file.read(_FILE_BYTES + 1)
    if len(data) != _FILE_BYTES or not data.startswith(_MAGIC):
        raise StoreError(
            f"identity file {path} is damaged ({len(data)} bytes); restore it from a backup, "
            "or delete it to get a new identity (others will not know this machine any more)"
        )
    return Identity.of(Ed25519PrivateKey.from_private_bytes(data[len(_MAGIC) :]))
