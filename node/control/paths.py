"""Where a node's control socket is, and how to bind and connect to it wherever that is.

The socket has a folder of its own that only its owner may enter, whatever the modes of the
folders around it are. A path that is too long for a socket's address is reached through an
open folder.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import platformdirs

from echo2swarm.system.errors import StoreError

FOLDER: Final = "control"
SOCKET: Final = "node.sock"
_MAX_ADDRESS_BYTES: Final = 100
"""Of 108 on Linux, 104 elsewhere."""
_FOLDER_MODE: Final = 0o700


def socket_path(state_dir: Path) -> Path:
    """Return where the socket of the node in ``state_dir`` is."""
    return state_dir / FOLDER / SOCKET


def make_private_folder(state_dir: Path) -> Path:
    """Return the socket's folder, made and closed to everybody else.

    Raises:
        StoreError: it is somebody else's, a link, or can't be made.
    """
    folder = state_dir / FOLDER
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise StoreError(f"{folder} is not a folder of this user; remove it, and start again")
        folder.chmod(_FOLDER_MODE)
    except OSError as exc:
        raise StoreError(
            f"can't use the folder of the control socket, {folder}: {exc.strerror or exc}"
        ) from exc
    return folder


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Yield the address of the socket ``path``; it is good while the context lasts."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def default_state_dir() -> Path:
    """Return where a node keeps its state if nothing was said."""
    return Path(platformdirs.user_state_dir("echo2swarm")) / "node"


def default_registry() -> Path:
    """Return where running nodes are noted, so that ``status`` finds them."""
    return Path(platformdirs.user_state_dir("echo2swarm")) / "nodes"
