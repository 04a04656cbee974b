"""Versions that travel as deltas, over the in-memory network."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
import trio
import zstandard
from structlog.testing import capture_logs
from trio.testing import MockClock

from echo2swarm.system.errors import StoreError
from echo2swarm.weights.delta import apply as rebuild_module
from echo2swarm.weights.delta.content import ContentWriter
from echo2swarm.weights.publish import PolicyRules
from echo2swarm.weights.store.library import HeldVersion, open_library
from protocols import manifest as manifest_protocol
from protocols.ids import PolicyVersion
from protocols.manifest import Delta, base_of
from tests.echo2swarm.weights.delta.made import changed, make_delta
from tests.echo2swarm.weights.made import LEARNER_KEY, RULES, RUN, trained
from tests.echo2swarm.weights.swarm import LEARNER, SIZE, Learner, Node, address_of, learner, node
from tests.fakes.network.memory import MemoryHub

DATA = trained(8, size=SIZE)
KEEPING = PolicyRules(
    sampling=RULES.sampling, max_staleness=1, publish_every=1, num_versions_kept=4
)


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(seed=1)


@pytest.fixture
async def owner(tmp_path: Path, hub: MemoryHub) -> AsyncIterator[Learner]:
    async with learner(hub, tmp_path / "l") as it:
        yield it


def content(held: HeldVersion) -> bytes:
    return (held.weights / "model.safetensors").read_bytes()


async def until(version: int, joined: Node) -> HeldVersion:
    with trio.fail_after(300):
        return await joined.sync.next_version(PolicyVersion(version - 1))


async def test_who_holds_a_version_gets_the_next_as_a_delta_bit_for_bit(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        await until(0, joined)
        before_bytes = joined.traffic.received_bytes
        with capture_logs() as logs:
            published = await owner.publish(1, data=DATA[1])
            held = await until(1, joined)

        assert content(held) == DATA[1]
        assert held.manifest == published.manifest
        (delta,) = held.manifest.deltas
        assert joined.traffic.received_bytes - before_bytes == delta.payload.size_bytes
        assert delta.payload.size_bytes < 0.02 * SIZE
        (said,) = [log for log in logs if log["event"] == "version.held"]
        assert (said["how"], said["base"], said["size_bytes"]) == ("delta", 0, SIZE)
        assert said["fetched_bytes"] == delta.payload.size_bytes


async def test_who_missed_some_versions_is_one_delta_away(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        await until(0, joined)
    for version in (1, 2):
        await owner.publish(version, data=DATA[version])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as again:
        held = await until(2, again)
        assert content(held) == DATA[2]
        assert again.traffic.received_bytes < 0.05 * SIZE


async def test_a_delta_is_relayed_and_its_result_is_served_whole(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as stack:
        await owner.publish(0, data=DATA[0])
        first, second = [
            await stack.enter_async_context(
                node(hub, tmp_path / f"n{n}", number=n, connect_to=[owner.network])
            )
            for n in (1, 2)
        ]
        await until(0, first)
        await until(0, second)
        hub.partition({LEARNER, first.network.peer})
        await owner.publish(1, data=DATA[1])
        await until(1, first)
        hub.heal()
        hub.kill(LEARNER)
        late = await stack.enter_async_context(
            node(hub, tmp_path / "n3", number=3, connect_to=[first.network, second.network])
        )
        await first.network.connect(address_of(second.network))

        assert content(await until(1, second)) == DATA[1]
        assert second.traffic.received_from[first.network.peer] < 0.05 * SIZE
        assert content(await until(1, late)) == DATA[1]


# What must never be applied. The learner signs each of these; it is wrong, or mistaken.


def garbage(_: Path, good: bytes) -> bytes:
    return bytes(len(good))


def cut_short(_: Path, good: bytes) -> bytes:
    return good[:-10]


def followed_by_more(_: Path, good: bytes) -> bytes:
    return good + b"x"


def to_other_weights(folder: Path, good: bytes) -> bytes:
    """Well-formed, on the right base, and said to lead where it does not."""
    folder.mkdir()
    (folder / "a").write_bytes(DATA[0])
    (folder / "b").write_bytes(changed(DATA[1], share=0.0001, seed=5))
    delta = make_delta(folder / "d", [folder / "a"], [folder / "b"], block_bytes=1 << 20)
    made = delta.read_bytes()
    return made[:24] + good[24:88] + made[88:]


def on_another_base(_: Path, good: bytes) -> bytes:
    return good[:24] + bytes(32) + good[56:]


def a_bomb(_: Path, good: bytes) -> bytes:
    frame = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))
    return good[:88] + bytes((2,)) + len(frame).to_bytes(4, "little") + frame


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (garbage, "bad_delta"),
        (cut_short, "bad_delta"),
        (followed_by_more, "bad_delta"),
        (to_other_weights, "bad_delta"),
        (a_bomb, "bad_delta"),
        (on_another_base, "wrong_base"),
    ],
)
async def test_a_bad_delta_is_refused_and_the_weights_come_whole(  # noqa: PLR0917
    tmp_path: Path,
    hub: MemoryHub,
    owner: Learner,
    autojump_clock: MockClock,
    spoil: Callable[[Path, bytes], bytes],
    reason: str,
) -> None:
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        before = await until(0, joined)
        sealed, spoilt = await _publish_spoilt(tmp_path, owner, spoil)
        held_meanwhile: list[bytes] = []
        with capture_logs() as logs, joined.sync.pin(before.version):
            await owner.announcer.announce(sealed)
            while not any(log["event"] == "delta.refused" for log in logs):  # noqa: ASYNC110
                await trio.sleep(0.01)  # a log has no event
            held_meanwhile.append(content(before))
            assert joined.sync.held == before
            assert not _leftovers(joined)
            held = await until(1, joined)

        assert held_meanwhile == [DATA[0]]
        assert content(held) == DATA[1]
        (refusal,) = [log for log in logs if log["event"] == "delta.refused"]
        assert refusal["reason"] == reason
        (said,) = [log for log in logs if log["event"] == "version.held"]
        assert said["how"] == "full"
        kept = joined.library.store.get(spoilt.payload.root_sha256)
        assert kept is None


async def _publish_spoilt(
    tmp_path: Path, owner: Learner, spoil: Callable[[Path, bytes], bytes]
) -> tuple[bytes, Delta]:
    """Publish version 1, and return a manifest of it whose delta is spoilt."""
    held = await owner.publish(1, data=DATA[1], announce=False)
    (delta,) = held.manifest.deltas
    payload = owner.library.store.get(delta.payload.root_sha256)
    assert payload is not None
    good = (payload.files / delta.payload.files[0].name).read_bytes()
    (tmp_path / "spoilt").write_bytes(spoil(tmp_path / "spoiling", good))
    spoilt, _ = await owner.library.store.adopt([tmp_path / "spoilt"])
    bad = msgspec.structs.replace(delta, payload=spoilt.ref)
    manifest = msgspec.structs.replace(held.manifest, deltas=(bad,))
    return manifest_protocol.sign_manifest(manifest, LEARNER_KEY), bad


def _leftovers(joined: Node) -> list[str]:
    folder = joined.library.store.folder / "payloads"
    return [path.name for path in folder.iterdir() if path.name.endswith(".making")]


async def test_a_base_damaged_on_the_disk_is_told_from_a_bad_delta(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        before = await until(0, joined)
        (before.weights / "model.safetensors").write_bytes(bytes(SIZE))
        with capture_logs() as logs:
            await owner.publish(1, data=DATA[1])
            assert content(await until(1, joined)) == DATA[1]
        (refusal,) = [log for log in logs if log["event"] == "delta.refused"]
        assert refusal["reason"] == "wrong_base"


async def test_a_codec_of_the_future_is_passed_over(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        await until(0, joined)
        held = await owner.publish(1, data=DATA[1], announce=False)
        later = tuple(msgspec.structs.replace(d, codec="later-2") for d in held.manifest.deltas)
        manifest = msgspec.structs.replace(held.manifest, deltas=later)
        await owner.announcer.announce(manifest_protocol.sign_manifest(manifest, LEARNER_KEY))
        assert content(await until(1, joined)) == DATA[1]


async def test_a_full_disk_while_rebuilding_leaves_what_was_held_and_the_node_recovers(
    tmp_path: Path,
    hub: MemoryHub,
    owner: Learner,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        before = await until(0, joined)
        with monkeypatch.context() as patching, capture_logs() as logs:
            patching.setattr(ContentWriter, "write", full)
            await owner.publish(1, data=DATA[1])
            await trio.sleep(60)
            assert joined.sync.held == before
            assert content(before) == DATA[0]
            assert _leftovers(joined) == []
            assert any("no space left" in log.get("error", "") for log in logs)
        assert content(await until(1, joined)) == DATA[1]


async def test_a_node_stopped_while_rebuilding_leaves_nothing_and_goes_on_later(
    tmp_path: Path,
    hub: MemoryHub,
    owner: Learner,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def endless(*_: object, **__: object) -> None:
        rebuilding.set()
        await trio.sleep_forever()

    rebuilding = trio.Event()
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        await until(0, joined)
        with monkeypatch.context() as patching:
            patching.setattr(rebuild_module, "run_in_steps", endless)
            await owner.publish(1, data=DATA[1])
            await rebuilding.wait()
            assert len(_leftovers(joined)) == 1
    assert _leftovers(joined) == []
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as again:
        assert content(await until(1, again)) == DATA[1]
        assert again.traffic.received_bytes < 0.05 * SIZE


async def test_what_a_killed_process_left_of_a_rebuilt_version_is_not_taken_for_one(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        await until(0, joined)
    published = await owner.publish(1, data=DATA[1], announce=False)
    ref = published.manifest.weights
    folder = joined.library.store.staging_folder(ref)
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "model.safetensors").write_bytes(DATA[1][:-1] + b"?")
    (folder / "ref").write_bytes(msgspec.msgpack.encode(ref))
    async with open_library(
        tmp_path / "n" / "library", run=RUN, learner_key=LEARNER_KEY.public_key()
    ) as library:
        assert library.versions == (PolicyVersion(0),)
        assert library.store.get(ref.root_sha256) is None
        assert not folder.exists()


async def test_a_base_stays_while_a_delta_on_it_is_on_its_way(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        before = await until(0, joined)
        await owner.publish(1, data=DATA[1])
        delta = owner.library.newest.manifest.deltas[0]  # type: ignore[union-attr]
        await joined.library.store.wait_for(delta.payload.root_sha256)
        await joined.library.store.prune(keep=())
        assert content(before) == DATA[0]
        assert content(await until(1, joined)) == DATA[1]
        assert joined.traffic.received_bytes < 1.1 * SIZE


async def test_a_base_nearly_here_is_finished_and_then_patched(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    old = await owner.publish(0, data=DATA[0], rules=KEEPING)
    newest = await owner.publish(1, data=DATA[1], rules=KEEPING)
    source = owner.library.store.get(old.manifest.weights.root_sha256)
    assert source is not None
    assert source.hashes is not None
    async with node(hub, tmp_path / "n", connect_to=[owner.network], is_synced=False) as joined:
        store = joined.library.store
        base = await store.begin(base_of(newest.manifest, newest.manifest.deltas[0]))
        await store.put_hashes(base, source.hashes)
        for index in range(base.ref.num_chunks - 2):
            await store.put_chunk(base, index, await owner.library.store.read_chunk(source, index))
        async with trio.open_nursery() as nursery:
            await nursery.start(joined.sync.run)
            held = await until(1, joined)
            nursery.cancel_scope.cancel()
        assert content(held) == DATA[1]
        assert joined.traffic.received_bytes < 0.2 * SIZE


async def test_an_anchor_outlives_the_versions_around_it_and_the_disk_stays_bounded(
    tmp_path: Path, hub: MemoryHub, owner: Learner, autojump_clock: MockClock
) -> None:
    sizes = []
    await owner.publish(0, data=DATA[0])
    async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
        await until(0, joined)
        for version in range(1, 8):
            await owner.publish(version, data=DATA[version])
            assert content(await until(version, joined)) == DATA[version]
            sizes.append(
                max(
                    await owner.library.store.bytes_on_disk(),
                    await joined.library.store.bytes_on_disk(),
                )
            )
        newest = owner.library.newest
        assert newest is not None
        assert [d.base_version for d in newest.manifest.deltas] == [6, 5, 0]
        anchor = base_of(newest.manifest, newest.manifest.deltas[-1])
        for library in (owner.library, joined.library):
            assert list(library.versions) == [6, 7]
            payload = library.store.get(anchor.root_sha256)
            assert payload is not None
            assert payload.is_complete
        assert max(sizes) < 4.2 * SIZE  # two versions, the anchor, deltas, and one being deleted
        assert joined.traffic.received_bytes < 1.3 * SIZE


async def test_the_deltas_of_the_newest_two_versions_are_kept_and_older_ones_deleted(
    owner: Learner, autojump_clock: MockClock
) -> None:
    steps = []
    for version in range(5):
        held = await owner.publish(version, data=DATA[version], rules=KEEPING)
        steps += [delta.payload.root_sha256 for delta in held.manifest.deltas[:1]]
    assert [owner.library.store.get(root) is not None for root in steps] == [
        False,
        False,
        True,
        True,
    ]


async def test_a_learner_that_was_restarted_offers_deltas_from_what_is_on_its_disk(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as before:
        for version in (0, 1, 2):
            await before.publish(version, data=DATA[version])
    async with learner(hub, tmp_path / "l") as after:
        held = await after.publish(3, data=DATA[3])
        assert [d.base_version for d in held.manifest.deltas] == [2, 1, 0]


async def test_a_version_trained_again_after_a_crash_is_a_base_only_for_who_has_those_bytes(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    again = changed(DATA[0], share=0.005, seed=77)
    last = changed(again, share=0.005, seed=78)
    async with learner(hub, tmp_path / "l") as before:
        await before.publish(0, data=DATA[0])
        await before.publish(1, data=DATA[1])
        async with node(hub, tmp_path / "n", connect_to=[before.network]) as joined:
            await until(1, joined)
    async with learner(hub, tmp_path / "l") as after:
        other = await after.publish(1, data=again)
        newest = await after.publish(2, data=last)
        async with node(hub, tmp_path / "n", connect_to=[after.network]) as joined:
            assert content(await until(2, joined)) == last

    step = newest.manifest.deltas[0]
    assert step.base_version == 1
    assert step.base_root_sha256 == other.manifest.weights.root_sha256
    assert joined.traffic.received_bytes >= SIZE  # its own version 1 is no base of this one


@pytest.mark.parametrize("data", [DATA[0][:-64], DATA[0] + bytes(64)], ids=["shorter", "longer"])
async def test_weights_of_another_size_are_published_without_deltas(
    owner: Learner, autojump_clock: MockClock, data: bytes
) -> None:
    await owner.publish(0, data=DATA[0])
    held = await owner.publish(1, data=data)
    assert held.manifest.deltas == ()


async def test_weights_that_did_not_change_need_no_delta(
    owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, data=DATA[0])
    held = await owner.publish(1, data=DATA[0])
    assert held.manifest.deltas == ()


async def test_weights_that_changed_all_over_are_published_without_deltas(
    owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, size=SIZE)
    with capture_logs() as logs:
        held = await owner.publish(1, size=SIZE)
    assert held.manifest.deltas == ()
    assert any(log["event"] == "delta.too_large" for log in logs)


async def test_a_delta_that_can_not_be_made_does_not_stop_a_publish(
    owner: Learner, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk is tired")

    await owner.publish(0, data=DATA[0])
    with monkeypatch.context() as patching, capture_logs() as logs:
        patching.setattr("echo2swarm.weights.delta.offered.diff", fail)
        held = await owner.publish(1, data=DATA[1])
    assert held.manifest.deltas == ()
    assert owner.library.newest == held
    assert any(log["event"] == "deltas.not_offered" for log in logs)
    # And the chain begins anew with the next.
    assert [d.base_version for d in (await owner.publish(2, data=DATA[2])).manifest.deltas] == [1]


async def test_leftovers_of_an_earlier_publish_are_never_mixed_in(
    owner: Learner, autojump_clock: MockClock
) -> None:
    await owner.publish(0, data=DATA[0])
    folder = owner.library.store.folder / "deltas"
    folder.mkdir(exist_ok=True)
    (folder / "0-1.xor-1").write_bytes(b"half of what a killed process was writing")
    held = await owner.publish(1, data=DATA[1])
    assert held.manifest.deltas[0].payload.size_bytes > 1000
    assert list(folder.iterdir()) == []
