"""The payload store: what counts as held, and what a crash leaves."""

import errno
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from echo2swarm.system.errors import StoreError
from echo2swarm.weights.store import layout
from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.store.store import PayloadStore, open_store
from protocols.chunks import indices_in
from protocols.errors import MalformedMessageError, RemoteProtocolError
from protocols.manifest import MIN_CHUNK_BYTES, FileRef, PayloadRef
from protocols.reasons import Reason
from tests.echo2swarm.weights.delta.made import random_bytes
from tests.echo2swarm.weights.made import Made, made


async def download(
    store: PayloadStore, payload: Made, *, num_chunks: int | None = None, seed: int = 0
) -> Payload:
    """Put ``num_chunks`` chunks (by default all) in random order."""
    stored = await store.begin(payload.ref)
    await store.put_hashes(stored, payload.hashes)
    order = list(range(len(payload.chunks)))
    random.Random(seed).shuffle(order)
    for index in order[:num_chunks]:
        await store.put_chunk(stored, index, payload.chunks[index])
    return stored


def content(stored: Payload) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in stored.files.iterdir()}


async def test_chunks_in_any_order_become_the_files(tmp_path: Path) -> None:
    payload = made()
    async with open_store(tmp_path) as store:
        stored = await download(store, payload)
        await store.finish(stored)

        assert content(stored) == payload.files
        assert stored.is_complete
        assert await store.sha256(stored) == hashlib.sha256(payload.data).digest()
        assert [await store.read_chunk(stored, i) for i in range(6)] == payload.chunks


async def test_a_chunk_with_a_wrong_hash_is_neither_written_nor_held(tmp_path: Path) -> None:
    payload = made()
    async with open_store(tmp_path) as store:
        stored = await download(store, payload, num_chunks=0)
        with pytest.raises(RemoteProtocolError) as caught:
            await store.put_chunk(stored, 2, payload.chunks[3])

        assert caught.value.reason == Reason.BAD_CHUNK_HASH
        assert stored.num_held == 0
        assert not any(b"".join(content(stored).values()))


async def test_hashes_that_are_not_the_payloads_are_refused(tmp_path: Path) -> None:
    payload = made()
    async with open_store(tmp_path) as store:
        stored = await store.begin(payload.ref)
        for forged in (payload.hashes[:-32], payload.hashes[::-1], b""):
            with pytest.raises(RemoteProtocolError) as caught:
                await store.put_hashes(stored, forged)
            assert caught.value.reason == Reason.BAD_CHUNK_HASH
        assert stored.hashes is None


async def test_a_new_process_resumes_with_the_chunks_that_are_there(tmp_path: Path) -> None:
    payload = made()
    async with open_store(tmp_path) as store:
        before = await download(store, payload, num_chunks=4)
        held = set(range(6)) - set(before.missing())

    async with open_store(tmp_path) as store:
        after = await store.begin(payload.ref)

        assert after.num_held == 4
        assert set(range(6)) - set(after.missing()) == held
        assert set(indices_in(after.bitmap(), num_chunks=6)) == held
        assert not after.is_complete


async def test_a_journal_that_says_more_than_the_disk_is_not_believed(tmp_path: Path) -> None:
    payload = made()
    async with open_store(tmp_path) as store:
        stored = await download(store, payload, num_chunks=0)
        with (stored.folder / layout.JOURNAL).open("wb") as journal:
            for index in (0, 1, 5, 99):
                journal.write(index.to_bytes(4, "little"))
            journal.write(b"\1\2")  # torn in the middle of an entry

    async with open_store(tmp_path) as store:
        assert (await store.begin(payload.ref)).num_held == 0


async def test_a_whole_looking_download_is_not_complete_before_its_rename(tmp_path: Path) -> None:
    # A folder with all files in full length, as a crash leaves it.
    payload = made()
    async with open_store(tmp_path) as store:
        stored = await download(store, payload, num_chunks=5)
        folder = stored.folder

    assert {p.name: p.stat().st_size for p in (folder / "files").iterdir()} == {
        name: len(data) for name, data in payload.files.items()
    }
    async with open_store(tmp_path) as store:
        again = store.get(payload.ref.root_sha256)
        assert again is not None
        assert not again.is_complete
        assert again.num_held == 5


async def test_a_complete_payload_that_was_damaged_is_not_taken_up(tmp_path: Path) -> None:
    payload = made()
    async with open_store(tmp_path) as store:
        stored = await download(store, payload)
        await store.finish(stored)
        with (stored.files / "c").open("r+b") as handle:
            handle.seek(1000)
            handle.write(b"damage")

    async with open_store(tmp_path) as store:
        assert store.get(payload.ref.root_sha256) is None
        assert (await store.begin(payload.ref)).num_held == 0


async def test_leftovers_that_are_no_payload_are_removed_at_the_start(tmp_path: Path) -> None:
    async with open_store(tmp_path):
        pass
    for name in ("aa.partial", "bb", "cc.adopting"):
        (tmp_path / "payloads" / name / "files").mkdir(parents=True)
    (tmp_path / "trash" / "dd.0").mkdir(parents=True)

    async with open_store(tmp_path):
        assert not list((tmp_path / "payloads").iterdir())
        assert not (tmp_path / "trash").exists()


async def test_a_payload_under_another_payloads_name_is_not_taken_up(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        stored = await download(store, made())
        await store.finish(stored)
        shutil.move(stored.folder, stored.folder.with_name("ab" * 32))

    async with open_store(tmp_path) as store:
        assert store.get(bytes.fromhex("ab" * 32)) is None
        assert store.get(made().ref.root_sha256) is None


CHILD = """
import sys, trio
from pathlib import Path
from echo2swarm.weights.store.store import open_store
from protocols.manifest import MIN_CHUNK_BYTES
from tests.echo2swarm.weights.made import made
async def main():
    payload = made(size=40 * MIN_CHUNK_BYTES)
    async with open_store(Path(sys.argv[1])) as store:
        stored = await store.begin(payload.ref)
        print("had", stored.num_held, flush=True)
        await store.put_hashes(stored, payload.hashes)
        for index, chunk in enumerate(payload.chunks):
            await store.put_chunk(stored, index, chunk)
            print(index, flush=True)
        await store.finish(stored)
        print("finished", flush=True)
trio.run(main)
"""


def run_and_kill(folder: Path, kill_after: int) -> tuple[int, int]:
    """Download in a process, kill it; returns (chunks it began with, last chunk it reported)."""
    command = [sys.executable, "-c", CHILD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        had = int(child.stdout.readline().split()[1])
        last = -1
        while last < kill_after:
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    return had, last


@pytest.mark.processes
async def test_a_process_killed_at_any_moment_leaves_only_chunks_that_are_right(
    tmp_path: Path,
) -> None:
    payload = made(size=40 * MIN_CHUNK_BYTES)
    num_known = 0
    for kill_after in (2, 11, 25):
        had, last = await trio.to_thread.run_sync(run_and_kill, tmp_path, kill_after)
        assert had >= num_known
        num_known = last + 1

        async with open_store(tmp_path) as store:
            stored = store.get(payload.ref.root_sha256)
            assert stored is not None
            assert stored.num_held >= num_known
            for index in set(range(40)) - set(stored.missing()):
                assert await store.read_chunk(stored, index) == payload.chunks[index]


async def test_a_second_process_is_told_that_the_store_is_in_use(tmp_path: Path) -> None:
    async with open_store(tmp_path):
        with pytest.raises(StoreError, match="in use by another process"):
            async with open_store(tmp_path):
                pass


async def test_too_little_space_for_a_download_is_said_before_it_begins(tmp_path: Path) -> None:
    async with open_store(tmp_path, reserve_bytes=2**60) as store:
        with pytest.raises(StoreError, match=r"needs .* on the disk of .*, which has .* left"):
            await store.begin(made().ref)
        assert store.get(made().ref.root_sha256) is None
        assert not list((tmp_path / "payloads").iterdir())


async def test_a_disk_that_fills_up_is_an_error_in_one_line_and_the_chunk_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    payload = made()
    async with open_store(tmp_path) as store:
        stored = await download(store, payload, num_chunks=2)
        first = stored.missing()[0]
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StoreError, match=r"no space left .* are needed; free") as caught:
                await store.put_chunk(stored, first, payload.chunks[first])
        assert "\n" not in str(caught.value)
        assert stored.num_held == 2
        assert not stored.holds(first)
        await store.put_chunk(stored, first, payload.chunks[first])
        assert stored.holds(first)


async def test_adopted_files_are_a_complete_payload_without_a_copy(tmp_path: Path) -> None:
    source = tmp_path / "model.safetensors"
    source.write_bytes(random_bytes(2 * MIN_CHUNK_BYTES + 1))
    async with open_store(tmp_path / "store") as store:
        payload, content_sha256 = await store.adopt([source])

        assert payload.is_complete
        assert (payload.files / source.name).stat().st_ino == source.stat().st_ino
        assert await store.sha256(payload) == content_sha256
        source.unlink()
        assert await store.sha256(payload) == content_sha256


async def test_what_is_adopted_has_the_same_name_as_what_is_downloaded(tmp_path: Path) -> None:
    payload = made()
    paths = []
    for name, data in payload.files.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(data)
    async with open_store(tmp_path / "store") as store:
        adopted, _ = await store.adopt(paths)
        assert adopted.ref == payload.ref
        assert adopted.hashes == payload.hashes
        again, _ = await store.adopt(paths)
        assert again is adopted


async def test_a_pinned_payload_is_not_deleted_and_an_unpinned_one_is(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        stored = await download(store, made())
        await store.finish(stored)
        with store.pin(stored.root):
            assert await store.prune(keep=()) == 0
            assert content(stored) == made().files
        assert await store.prune(keep=[stored.root]) == 0
        assert await store.prune(keep=()) == 1
        assert store.get(stored.root) is None
        assert not list((tmp_path / "payloads").iterdir())
        assert not list((tmp_path / "trash").iterdir())
        with pytest.raises(StoreError, match="is not in"), store.pin(stored.root):
            pass


async def test_a_payload_that_was_deleted_can_be_begun_again(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await download(store, made(), num_chunks=3)
        await store.prune(keep=())
        assert (await download(store, made())).is_whole


async def test_space_used_is_reported(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        empty = await store.bytes_on_disk()
        await download(store, made())
        assert await store.bytes_on_disk() - empty >= made().ref.size_bytes
        await store.prune(keep=())
        assert await store.bytes_on_disk() - empty < MIN_CHUNK_BYTES


async def test_one_root_with_two_shapes_is_refused(tmp_path: Path) -> None:
    ref = made().ref
    other = PayloadRef(
        ref.root_sha256, ref.size_bytes, ref.chunk_bytes, (FileRef("x", ref.size_bytes),)
    )
    async with open_store(tmp_path) as store:
        await store.begin(ref)
        with pytest.raises(MalformedMessageError):
            await store.begin(other)
