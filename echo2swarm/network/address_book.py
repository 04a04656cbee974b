"""The peers seen last and where: remembered between starts, tried at the next.

A convenience, not a source of truth: a file that is damaged or of another run
is as good as none, and who answers at an address still has to prove its key.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog

from echo2swarm.network.addresses import merge_addresses
from echo2swarm.network.base import PeerInfo
from echo2swarm.system.errors import StoreError
from protocols.errors import MalformedMessageError
from protocols.ids import PeerId, RunId, public_key_of
from protocols.ticket import MAX_ADDRESSES, Address, RunName

MAX_PEERS: Final = 64
MAX_FILE_BYTES: Final = 1024 * 1024

_log = structlog.get_logger()


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    peer: Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)]
    last_seen_unix_s: Annotated[float, msgspec.Meta(ge=0)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run_id: RunName
    peers: Annotated[tuple[_Entry, ...], msgspec.Meta(max_length=MAX_PEERS)]


class AddressBook:
    """The last peers of one run; forgets those not seen for longest when full."""

    def __init__(self, run: RunId, entries: Iterable[_Entry] = ()) -> None:
        self._run = run
        self._entries = {PeerId(entry.peer): entry for entry in entries}

    def saw(self, info: PeerInfo, *, now_unix_s: float) -> None:
        """Note that ``info.peer`` is there now; its newest addresses come first."""
        old = self._entries.get(info.peer)
        addresses = merge_addresses(info.addresses, old.addresses if old else ())
        if not addresses:
            return
        self._entries[info.peer] = _Entry(info.peer, addresses, max(now_unix_s, 0.0))
        if len(self._entries) > MAX_PEERS:
            del self._entries[self._by_age()[-1].peer]  # type: ignore[arg-type]

    def peers(self) -> tuple[PeerInfo, ...]:
        """Return the peers, the one seen last first."""
        return tuple(
            PeerInfo(peer=PeerId(entry.peer), addresses=entry.addresses) for entry in self._by_age()
        )

    def _by_age(self) -> list[_Entry]:
        return sorted(
            self._entries.values(), key=lambda entry: (-entry.last_seen_unix_s, entry.peer)
        )

    def encode(self) -> bytes:
        """Return the book as its file holds it."""
        return msgspec.json.format(
            msgspec.json.encode(_File(self._run, tuple(self._by_age()))), indent=1
        )

    @classmethod
    def decode(cls, data: bytes, run: RunId) -> "AddressBook":
        """Parse a file.

        Raises:
            MalformedMessageError: it is no address book, or that of another run.
        """
        try:
            file = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise MalformedMessageError(f"not an address book: {exc}") from exc
        if file.run_id != run:
            raise MalformedMessageError(f"address book of run {file.run_id!r}, this is {run!r}")
        for entry in file.peers:
            public_key_of(PeerId(entry.peer))
        return cls(run, file.peers)


def load_address_book(path: Path, run: RunId) -> AddressBook:
    """Return the book in ``path``; an empty one if there is none, or none that can be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise MalformedMessageError(f"longer than {MAX_FILE_BYTES} bytes")
        return AddressBook.decode(data, run)
    except FileNotFoundError:
        return AddressBook(run)
    except (OSError, MalformedMessageError) as exc:
        _log.warning("address_book.ignored", path=str(path), error=str(exc))
        return AddressBook(run)


def save(encoded: bytes, path: Path) -> None:
    """Write an encoded book so that the file is always a whole one.

    Raises:
        StoreError: it can't be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(encoded)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as exc:
        raise StoreError(f"can't write address book {path}: {exc.strerror or exc}") from exc
