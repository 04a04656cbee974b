"""Where a payload's bytes lie on disk, and the blocking work on them; for worker threads.

A payload is stored as its files themselves, so that an engine loads them where
they are. Chunk i is a span of the concatenated files, and may cross from one
file to the next::

    payloads/ROOT.partial/      some chunks are missing, or not all has been checked
    payloads/ROOT/              complete; it got here by a rename
        ref                     the PayloadRef
        hashes                  SHA-256 of each chunk, 32 bytes each
        held                    journal: index of each chunk written, 4 bytes each
        files/NAME ...

Nothing is fsynced: what is found at a start is checked against its hashes
before it counts (about 1 s per GB), which covers a killed process, a power cut
and a failing disk alike, and costs nothing while the swarm runs.
"""

import errno
import hashlib
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from echo2swarm.system.errors import DiskFullError, StoreError
from echo2swarm.system.files import write_atomically
from protocols.manifest import PayloadRef, root_of

REF: Final = "ref"
HASHES: Final = "hashes"
JOURNAL: Final = "held"
FILES: Final = "files"
PARTIAL_SUFFIX: Final = ".partial"
HASH_BYTES: Final = 32
_INDEX = struct.Struct("<I")
_READ_BYTES: Final = 1024 * 1024


class BadChunkError(Exception):
    """A chunk's bytes are not those that its hash stands for."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """A piece of one file."""

    name: str
    offset: int
    length: int


def spans_of(ref: PayloadRef, offset: int, length: int) -> Iterator[FileSpan]:
    """Yield the pieces of files that bytes ``offset`` to ``offset + length`` of a payload are."""
    start = 0
    for file in ref.files:
        first = max(offset, start)
        last = min(offset + length, start + file.size_bytes)
        if first < last:
            yield FileSpan(file.name, first - start, last - first)
        start += file.size_bytes


def chunk_hash(hashes: bytes, index: int) -> bytes:
    """Return the hash of chunk ``index`` out of a list of hashes."""
    return hashes[HASH_BYTES * index : HASH_BYTES * (index + 1)]


def human_bytes(num_bytes: int) -> str:
    """Return a size for people to read."""
    size = float(num_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def disk_error(exc: OSError, what: str, folder: Path, *, needed_bytes: int = 0) -> StoreError:
    """Say in one line what a failed file operation means and what to do."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"{what}: no space left on the disk of {folder}"
            + (f", {human_bytes(needed_bytes)} are needed" if needed_bytes else "")
            + "; free some, or choose another folder"
        )
    return StoreError(f"{what} in {folder}: {exc.strerror or exc}")


def check_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise if the disk of ``folder`` has less than ``needed_bytes`` left.

    Raises:
        DiskFullError: it has.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DiskFullError(
            f"{what} needs {human_bytes(needed_bytes)} on the disk of {folder}, which has "
            f"{human_bytes(free_bytes)} left; free some, or choose another folder"
        )


def create_partial(folder: Path, ref: PayloadRef, *, reserve_bytes: int) -> None:
    """Lay out a payload without any chunk; the files are sparse.

    Raises:
        StoreError: its disk does not have room for it, and ``reserve_bytes`` more.
    """
    check_space(folder.parent, ref.size_bytes + reserve_bytes, "a download")
    files = folder / FILES
    try:
        files.mkdir(parents=True)
        for file in ref.files:
            with (files / file.name).open("wb") as handle:
                handle.truncate(file.size_bytes)
        # Last: without it, the folder is a leftover.
        write_atomically(folder / REF, msgspec.msgpack.encode(ref), is_durable=False)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def create_staging(folder: Path, ref: PayloadRef, *, reserve_bytes: int) -> None:
    """Make an empty folder in which the files of a payload are to be made.

    Raises:
        StoreError: its disk does not have room for them, and ``reserve_bytes`` more.
    """
    shutil.rmtree(folder, ignore_errors=True)
    check_space(folder.parent, ref.size_bytes + reserve_bytes, "a rebuilt version")
    (folder / FILES).mkdir(parents=True)


def write_about(folder: Path, ref: PayloadRef, hashes: bytes) -> None:
    """Write beside a payload's files what the payload is."""
    write_atomically(folder / HASHES, hashes, is_durable=False)
    write_atomically(folder / REF, msgspec.msgpack.encode(ref), is_durable=False)


def read_ref(folder: Path) -> PayloadRef | None:
    """Return the reference a payload's folder was made for, or None if it is unusable."""
    try:
        return msgspec.msgpack.decode((folder / REF).read_bytes(), type=PayloadRef)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def read_hashes(folder: Path, ref: PayloadRef) -> bytes | None:
    """Return the payload's chunk hashes, or None if they are missing or not its own."""
    try:
        hashes = (folder / HASHES).read_bytes()
    except OSError:
        return None
    return hashes if root_of(hashes) == ref.root_sha256 else None


def read_chunk(folder: Path, ref: PayloadRef, index: int) -> bytes:
    """Return one chunk as it lies on disk, unchecked."""
    offset, length = ref.chunk_span(index)
    parts = [_read_span(folder / FILES, span) for span in spans_of(ref, offset, length)]
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(data) != length:
        raise OSError(errno.EIO, f"chunk {index} is cut short")
    return data


def _read_span(files: Path, span: FileSpan) -> bytes:
    with _descriptor(files / span.name, os.O_RDONLY) as descriptor:
        return os.pread(descriptor, span.length, span.offset)


@contextmanager
def _descriptor(path: Path, flags: int) -> Iterator[int]:
    """Open a file without what a file object does besides.

    Each of its system calls gives way to the event loop and has to wait for its turn again.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_chunk(
    folder: Path, ref: PayloadRef, hashes: bytes, index: int, data: bytes | memoryview
) -> None:
    """Check one chunk, then write it, then note in the journal that it is there.

    Raises:
        BadChunkError: it is not the chunk; nothing was written.
    """
    if hashlib.sha256(data).digest() != chunk_hash(hashes, index):
        raise BadChunkError(f"chunk {index} has a wrong hash")
    offset, length = ref.chunk_span(index)
    view, done = memoryview(data), 0
    for span in spans_of(ref, offset, length):
        with _descriptor(folder / FILES / span.name, os.O_WRONLY) as file:
            _write_all(file, view[done : done + span.length], span.offset)
        done += span.length
    with _descriptor(folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as journal:
        os.write(journal, _INDEX.pack(index))


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        num_written = os.pwrite(descriptor, view, offset)
        view, offset = view[num_written:], offset + num_written


def journalled(folder: Path, ref: PayloadRef) -> list[int]:
    """Return the chunks that a partial payload's journal names; a torn last entry is left out."""
    try:
        data = (folder / JOURNAL).read_bytes()
    except OSError:
        return []
    whole = data[: len(data) - len(data) % _INDEX.size]
    indices = {index for (index,) in _INDEX.iter_unpack(whole)}
    return sorted(index for index in indices if index < ref.num_chunks)


def verified(folder: Path, ref: PayloadRef, hashes: bytes, claimed: Sequence[int]) -> list[int]:
    """Return those of the ``claimed`` chunks that are on disk as their hashes say."""
    good = []
    for index in claimed:
        try:
            data = read_chunk(folder, ref, index)
        except OSError:
            continue
        if hashlib.sha256(data).digest() == chunk_hash(hashes, index):
            good.append(index)
    return good


def sha256_of_files(folder: Path, ref: PayloadRef) -> bytes:
    """Return SHA-256 over the payload's files, one after the other."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_READ_BYTES))
    for file in ref.files:
        with (folder / FILES / file.name).open("rb", buffering=0) as handle:
            while num_bytes := handle.readinto(buffer):
                digest.update(buffer[:num_bytes])
    return digest.digest()


class PayloadHasher:
    """Hashes a payload's bytes as they go by, in order: each chunk, and all together."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._everything = hashlib.sha256()
        self._hashes = bytearray()
        self._chunk, self._room = hashlib.sha256(), chunk_bytes

    def update(self, data: memoryview) -> None:
        """Take in what comes next."""
        self._everything.update(data)
        while data:
            part, data = data[: self._room], data[self._room :]
            self._chunk.update(part)
            self._room -= len(part)
            if not self._room:
                self._hashes += self._chunk.digest()
                self._chunk, self._room = hashlib.sha256(), self._chunk_bytes

    def finish(self) -> tuple[bytes, bytes]:
        """Return (chunk hashes, SHA-256 of everything)."""
        is_last_short = self._room < self._chunk_bytes
        last = self._chunk.digest() if is_last_short else b""
        return bytes(self._hashes) + last, self._everything.digest()


def hash_files(paths: Sequence[Path], *, chunk_bytes: int) -> tuple[bytes, bytes]:
    """Return (chunk hashes, SHA-256 of everything) of files read once, in order."""
    hasher, buffer = PayloadHasher(chunk_bytes), memoryview(bytearray(_READ_BYTES))
    for path in paths:
        with path.open("rb", buffering=0) as handle:
            while num_bytes := handle.readinto(buffer):
                hasher.update(buffer[:num_bytes])
    return hasher.finish()


def bytes_on_disk(folder: Path) -> int:
    """Return how much space a folder takes; sparse files count what is written."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # deleted meanwhile
    return total


def discard(path: Path, trash: Path) -> Path:
    """Move a folder out of sight at once; :func:`shutil.rmtree` of the result may take its time."""
    trash.mkdir(exist_ok=True)
    serial = 0
    while (target := trash / f"{path.name}.{serial}").exists():
        serial += 1
    return path.rename(target)
