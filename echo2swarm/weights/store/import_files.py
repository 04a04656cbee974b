"""Files that are on this machine already become a payload; blocking, for worker threads."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from echo2swarm.system.errors import StoreError
from echo2swarm.weights.store import layout
from echo2swarm.weights.store.layout import HASH_BYTES
from protocols.errors import MalformedMessageError
from protocols.manifest import FileRef, PayloadRef, check_payload, chunk_bytes_for, root_of


def describe(paths: Sequence[Path]) -> tuple[PayloadRef, bytes, bytes]:
    """Return (reference, chunk hashes, SHA-256 of all bytes) of files as one payload.

    Raises:
        OSError: they can't be read.
        StoreError: they do not make a valid payload.
    """
    sizes = [path.stat().st_size for path in paths]
    chunk_bytes = chunk_bytes_for(sum(sizes))
    hashes, content_sha256 = layout.hash_files(paths, chunk_bytes=chunk_bytes)
    files = tuple(FileRef(path.name, size) for path, size in zip(paths, sizes, strict=True))
    ref = PayloadRef(root_of(hashes), sum(sizes), chunk_bytes, files)
    try:
        # Through the wire format once, so that peers will find it valid too.
        ref = msgspec.msgpack.decode(msgspec.msgpack.encode(ref), type=PayloadRef)
        check_payload(ref)
    except (msgspec.ValidationError, MalformedMessageError) as exc:
        raise StoreError(f"files can't be published: {exc}") from None
    if len(hashes) != HASH_BYTES * ref.num_chunks:
        raise StoreError(f"{paths[0].parent} was written to while it was being published")
    return ref, hashes, content_sha256


def import_files(
    paths: Sequence[Path], ref: PayloadRef, hashes: bytes, target: Path, reserve_bytes: int
) -> None:
    """Lay out a complete payload at ``target`` from files that :func:`describe` described.

    Raises:
        OSError: they can't be read, linked or written.
        StoreError: they would have to be copied, and there is no room.
    """
    staging = target.with_name(f"{target.name}.adopting")
    files = staging / layout.FILES
    try:
        files.mkdir(parents=True)
        for path in paths:
            # A snapshot may be made of symbolic links; what they point to is linked.
            _link_or_copy(path.resolve(), files / path.name, reserve_bytes)
        layout.write_about(staging, ref, hashes)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _link_or_copy(source: Path, target: Path, reserve_bytes: int) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        # Another disk, or one without links.
        layout.check_space(target.parent, source.stat().st_size + reserve_bytes, "a snapshot")
        shutil.copyfile(source, target)
