"""Payloads on disk, named by their content: what was verified, and nothing else.

See :mod:`echo2swarm.weights.store.layout` for the files. The rules:

- a chunk counts as held only after its hash was checked, in this process: what a
  former one left is checked again when the store opens, and a download resumes
  from what passes;
- a payload is complete by a rename of its folder, never because files exist;
- what is pinned is not deleted; what is being deleted cannot be pinned;
- hashing and file access happen in worker threads, state changes on the event loop.
"""

import fcntl
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from echo2swarm.system.errors import StoreError
from echo2swarm.system.files import write_atomically
from echo2swarm.weights.store import layout
from echo2swarm.weights.store.import_files import describe, import_files
from echo2swarm.weights.store.layout import HASH_BYTES, BadChunkError
from echo2swarm.weights.store.load import fill, load_payload
from echo2swarm.weights.store.payload import Payload
from protocols.errors import LocalProtocolError, MalformedMessageError, RemoteProtocolError
from protocols.manifest import PayloadRef, check_payload, root_of
from protocols.reasons import Reason

MAX_IO_THREADS: Final = 2
RESERVE_BYTES: Final = 64 * 1024 * 1024
"""Left free on the disk, for whoever else writes there."""

_T = TypeVar("_T")
_log = structlog.get_logger()


@asynccontextmanager
async def open_store(
    folder: Path, *, max_io_threads: int = MAX_IO_THREADS, reserve_bytes: int = RESERVE_BYTES
) -> AsyncIterator["PayloadStore"]:
    """Open the store in ``folder``, made if missing, and check what is in it.

    Args:
        folder: the store's own; nothing else may write there.
        max_io_threads: how many files and hashes are worked on at once.
        reserve_bytes: a download that would leave less than this free does not begin.

    Raises:
        StoreError: the folder can't be used, or another process uses it.
    """
    try:
        (folder / "payloads").mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("ab")
    except OSError as exc:
        raise layout.disk_error(exc, "cannot open the payload store", folder) from exc
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"payload store {folder} is in use by another process; stop that one, "
                "or choose another folder"
            ) from None
        store = PayloadStore(
            folder, io=trio.CapacityLimiter(max_io_threads), reserve_bytes=reserve_bytes
        )
        await store._recover()
        yield store


class PayloadStore:
    """The payloads in one folder. Made by :func:`open_store`."""

    def __init__(self, folder: Path, *, io: trio.CapacityLimiter, reserve_bytes: int) -> None:
        self._folder = folder
        self._payloads_folder = folder / "payloads"
        self._trash = folder / "trash"
        self._io = io
        self._reserve_bytes = reserve_bytes
        self._payloads: dict[bytes, Payload] = {}
        self._added = trio.Event()
        self._creating = trio.Lock()

    @property
    def folder(self) -> Path:
        """Where the store is."""
        return self._folder

    def get(self, root: bytes) -> Payload | None:
        """Return a payload of which at least the reference is here."""
        return self._payloads.get(root)

    async def wait_for(self, root: bytes) -> Payload:
        """Return a payload once at least its reference is here."""
        while (payload := self.get(root)) is None:
            await self._added.wait()
        return payload

    @contextmanager
    def pin(self, root: bytes) -> Iterator[Payload]:
        """Keep a payload from being deleted while the context lasts.

        Raises:
            StoreError: it is not here.
        """
        payload = self.get(root)
        if payload is None:
            raise StoreError(f"payload {root.hex()[:16]} is not in {self._folder}")
        payload.num_pins += 1
        try:
            yield payload
        finally:
            payload.num_pins -= 1

    async def begin(self, ref: PayloadRef) -> Payload:
        """Return the payload ``ref`` names, with the chunks already here; none if it is new.

        Raises:
            StoreError: the disk lacks the space, or can't be written.
            MalformedMessageError: the reference contradicts itself.
        """
        check_payload(ref)
        async with self._creating:
            if (payload := self.get(ref.root_sha256)) is not None:
                if payload.ref != ref:
                    # One root, two shapes: the signer's mistake, and never ours to mix.
                    raise MalformedMessageError("the same chunks under other file names or sizes")
                return payload
            folder = self._folder_of(ref.root_sha256, is_partial=True)
            await self._on_disk(
                partial(layout.create_partial, folder, ref, reserve_bytes=self._reserve_bytes),
                "cannot begin a download",
                needed_bytes=ref.size_bytes,
            )
            return self._add(Payload(ref, folder))

    async def put_hashes(self, payload: Payload, hashes: bytes) -> None:
        """Take a payload's list of chunk hashes, from anybody.

        Raises:
            RemoteProtocolError: it is not the list that the payload is named after.
            StoreError: it can't be written.
        """
        if payload.hashes is not None:
            return
        is_right_length = len(hashes) == HASH_BYTES * payload.ref.num_chunks
        if not is_right_length or root_of(hashes) != payload.root:
            raise RemoteProtocolError(
                "a list of chunk hashes that is not the payload's", reason=Reason.BAD_CHUNK_HASH
            )
        path = payload.folder / layout.HASHES
        await self._on_disk(
            partial(write_atomically, path, hashes, is_durable=False), "cannot write hashes"
        )
        payload.add_hashes(hashes)

    async def put_chunk(self, payload: Payload, index: int, data: bytes | memoryview) -> None:
        """Check a chunk, write it, and count it as held.

        Raises:
            RemoteProtocolError: the bytes are not that chunk; nothing was written.
            StoreError: it can't be written, for want of space or because the payload
                was deleted meanwhile.
        """
        if payload.hashes is None:
            raise LocalProtocolError("a chunk can't be checked before the hashes are known")
        if payload.holds(index):
            return
        self._check_is_here(payload)
        missing_bytes = payload.ref.size_bytes - payload.held_bytes
        write = partial(
            layout.write_chunk, payload.folder, payload.ref, payload.hashes, index, data
        )
        try:
            await self._on_disk(write, "cannot write a chunk", needed_bytes=missing_bytes)
        except BadChunkError as exc:
            raise RemoteProtocolError(str(exc), reason=Reason.BAD_CHUNK_HASH) from None
        payload.add_chunk(index)

    async def read_chunk(self, payload: Payload, index: int) -> bytes:
        """Return a chunk that is held.

        Raises:
            StoreError: it can't be read, or the payload was deleted meanwhile.
        """
        if not payload.holds(index):
            raise LocalProtocolError(f"chunk {index} is not held")
        while True:
            folder = payload.folder
            read = partial(layout.read_chunk, folder, payload.ref, index)
            try:
                data = await self._on_disk(read, "cannot read a chunk")
            except StoreError:
                if payload.folder == folder:
                    raise
                continue  # Completing a payload moves it; read it where it is now.
            # Another download of the same payload may have begun where this one was.
            self._check_is_here(payload)
            return data

    async def finish(self, payload: Payload) -> None:
        """Make a payload whose every chunk is here complete.

        Raises:
            StoreError: the folder can't be renamed.
        """
        if not payload.is_whole:
            raise LocalProtocolError(f"{payload.num_held} of {payload.ref.num_chunks} chunks held")
        if payload.is_complete:
            return
        target = self._folder_of(payload.root, is_partial=False)
        payload.folder = self._moved(payload.folder, target)
        payload.is_complete = True
        await trio.lowlevel.checkpoint()

    async def sha256(self, payload: Payload) -> bytes:
        """Return SHA-256 over the payload's files, one after the other.

        Raises:
            StoreError: they can't be read.
        """
        return await self._on_disk(
            lambda: layout.sha256_of_files(payload.folder, payload.ref), "cannot read a payload"
        )

    async def adopt(self, paths: Sequence[Path]) -> tuple[Payload, bytes]:
        """Take local files as a complete payload; returns it and the SHA-256 of all its bytes.

        The files are linked where the disk allows, and copied elsewhere. Delete the
        originals as you like, but never write to them again.

        Raises:
            StoreError: they can't be read, linked or copied, or are no valid payload.
        """
        ref, hashes, content_sha256 = await self._on_disk(
            partial(describe, paths), "cannot read a snapshot"
        )
        async with self._creating:
            known = self.get(ref.root_sha256)
            if known is not None and known.is_complete and known.ref == ref:
                return known, content_sha256
            if known is not None and not await self._delete(known):
                raise StoreError(f"payload {known.root.hex()[:16]} is in use in another shape")
            target = self._folder_of(ref.root_sha256, is_partial=False)
            await self._on_disk(
                partial(import_files, paths, ref, hashes, target, self._reserve_bytes),
                "cannot store a snapshot",
                needed_bytes=ref.size_bytes,
            )
            payload = Payload(ref, target)
            fill(payload, hashes, range(ref.num_chunks))
            payload.is_complete = True
            return self._add(payload), content_sha256

    def staging_folder(self, ref: PayloadRef) -> Path:
        """Return where a payload may be made that :meth:`admit` then takes in.

        Nothing is there yet; what is left there, the next process deletes.
        """
        return self._payloads_folder / f"{ref.root_sha256.hex()}.making"

    async def admit(self, ref: PayloadRef, staging: Path, hashes: bytes) -> Payload:
        """Take a payload that was made in its staging folder, and hashed meanwhile.

        Args:
            ref: what it is to be.
            staging: holds its files; gone afterwards.
            hashes: of the chunks of the bytes that are there.

        Raises:
            RemoteProtocolError: what was made is not the payload; nothing changed.
            StoreError: it can't be moved.
        """
        if len(hashes) != HASH_BYTES * ref.num_chunks or root_of(hashes) != ref.root_sha256:
            raise RemoteProtocolError("what was made is not the payload", reason=Reason.BAD_DELTA)
        await self._on_disk(
            partial(layout.write_about, staging, ref, hashes), "cannot complete a payload"
        )
        async with self._creating:
            payload = self.get(ref.root_sha256)
            if payload is not None and payload.ref != ref:
                raise MalformedMessageError("the same chunks under other file names or sizes")
            if payload is not None and payload.is_complete:
                await self._in_thread(partial(shutil.rmtree, staging, ignore_errors=True))
                return payload
            fetched = None if payload is None else payload.folder
            if payload is None:
                payload = Payload(ref, staging)
            payload.folder = self._moved(staging, self._folder_of(payload.root, is_partial=False))
            # Who serves what had been fetched of it goes on with the whole.
            payload.is_complete = True
            fill(payload, hashes, range(ref.num_chunks))
            self._add(payload)
            if fetched is not None:
                await self._in_thread(partial(shutil.rmtree, fetched, ignore_errors=True))
        return payload

    async def find_damage(self, payload: Payload) -> bool:
        """Return whether a complete payload on the disk is no longer what it was.

        Raises:
            StoreError: it can't be told.
        """
        hashes, everything = payload.hashes, range(payload.ref.num_chunks)
        if hashes is None or not payload.is_complete:
            raise LocalProtocolError("only a complete payload can be damaged")
        check = partial(layout.verified, payload.folder, payload.ref, hashes, everything)
        return len(await self._on_disk(check, "cannot check a payload")) < payload.ref.num_chunks

    async def prune(self, keep: Collection[bytes]) -> int:
        """Delete every payload that is neither in ``keep`` (roots) nor pinned; returns how many."""
        doomed = [p for p in self._payloads.values() if p.root not in keep]
        return sum([await self._delete(payload) for payload in doomed])

    async def delete(self, root: bytes) -> bool:
        """Delete one payload unless it is pinned; returns whether it is gone."""
        payload = self.get(root)
        return payload is None or await self._delete(payload)

    async def bytes_on_disk(self) -> int:
        """Return how much space the store takes."""
        return await self._on_disk(
            partial(layout.bytes_on_disk, self._folder), "cannot measure the store"
        )

    def _folder_of(self, root: bytes, *, is_partial: bool) -> Path:
        return self._payloads_folder / (root.hex() + layout.PARTIAL_SUFFIX * is_partial)

    def _moved(self, folder: Path, target: Path) -> Path:
        # On the event loop, it is one system call: nobody sees a moment between.
        try:
            return folder.rename(target)
        except OSError as exc:
            raise layout.disk_error(exc, "cannot complete a payload", self._folder) from exc

    def _check_is_here(self, payload: Payload) -> None:
        if self.get(payload.root) is not payload:
            raise StoreError(f"payload {payload.root.hex()[:16]} was deleted meanwhile")

    def _add(self, payload: Payload) -> Payload:
        self._payloads[payload.root] = payload
        self._added.set()
        self._added = trio.Event()
        return payload

    async def _delete(self, payload: Payload) -> bool:
        if payload.num_pins or self._payloads.get(payload.root) is not payload:
            return False
        try:
            # Forgotten and moved away before anybody can pin or begin it again.
            trashed = layout.discard(payload.folder, self._trash)
        except OSError as exc:
            raise layout.disk_error(exc, "cannot delete a payload", self._folder) from exc
        del self._payloads[payload.root]
        payload.is_complete = False
        await self._in_thread(partial(shutil.rmtree, trashed, ignore_errors=True))
        return True

    async def _recover(self) -> None:
        """Take up what a former process left: check it, and remove what is of no use."""
        await self._in_thread(partial(shutil.rmtree, self._trash, ignore_errors=True))
        for folder in sorted(self._payloads_folder.iterdir()):
            payload = await self._on_disk(partial(load_payload, folder), "cannot check a payload")
            if payload is None or self.get(payload.root) is not None:
                _log.warning("payload.discarded", folder=folder.name, error="damaged or left over")
                await self._in_thread(partial(shutil.rmtree, folder, ignore_errors=True))
            else:
                self._add(payload)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await trio.to_thread.run_sync(work, limiter=self._io)

    async def _on_disk(self, work: Callable[[], _T], what: str, *, needed_bytes: int = 0) -> _T:
        try:
            return await self._in_thread(work)
        except OSError as exc:
            raise layout.disk_error(exc, what, self._folder, needed_bytes=needed_bytes) from exc
