"""From a published snapshot to a held version, over the in-memory network."""

import errno
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from echo2swarm.weights.publish import PolicyRules
from echo2swarm.weights.store.library import open_library
from protocols import manifest as manifest_protocol
from protocols.ids import PolicyVersion
from protocols.manifest import MIN_CHUNK_BYTES, topic_of
from protocols.reasons import Reason
from tests.echo2swarm.weights.made import LEARNER_KEY, RULES, RUN, STRANGER_KEY
from tests.echo2swarm.weights.swarm import LEARNER, SIZE, Node, learner, node
from tests.fakes.network.memory import MemoryHub


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(seed=1)


async def test_a_published_version_becomes_held_bit_for_bit(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        published = await owner.publish(0)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            with trio.fail_after(60):
                held = await joined.sync.next_version(None)

            assert held.manifest == published.manifest
            assert held.sealed == published.sealed
            for name in ("model.safetensors",):
                assert (held.weights / name).read_bytes() == (published.weights / name).read_bytes()
            assert sorted(p.name for p in held.assets.iterdir()) == [
                "config.json",
                "tokenizer.json",
            ]
            assert joined.traffic.received_from == {LEARNER: joined.traffic.received_bytes}
            assert owner.traffic.sent_bytes == joined.traffic.received_bytes


async def test_the_next_version_is_heard_by_gossip_and_its_assets_do_not_travel_again(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        await owner.publish(0)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            first = await joined.sync.next_version(None)
            received_bytes = joined.traffic.received_bytes
            began_s = trio.current_time()
            await owner.publish(1)
            with trio.fail_after(60):
                second = await joined.sync.next_version(first.version)

            assert second.version == 1
            assert trio.current_time() - began_s < 20
            assert joined.traffic.received_bytes - received_bytes == SIZE
            assert second.assets == first.assets


async def test_three_nodes_cost_the_learner_little_more_than_one_copy(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    hub = MemoryHub(seed=3, latency_s=(0.001, 0.01))
    async with learner(hub, tmp_path / "l") as owner, AsyncExitStack() as stack:
        nodes: list[Node] = []
        for number in (1, 2, 3):
            folder = tmp_path / f"n{number}"
            others = [owner.network, *(n.network for n in nodes)]
            nodes.append(
                await stack.enter_async_context(node(hub, folder, number=number, connect_to=others))
            )
        size = 200 * MIN_CHUNK_BYTES
        published = await owner.publish(0, size=size)
        with trio.fail_after(120):
            for joined in nodes:
                held = await joined.sync.next_version(None)
                assert held.manifest == published.manifest

        assets_bytes = published.manifest.assets.size_bytes
        copies = (owner.traffic.sent_bytes - 3 * assets_bytes) / size
        assert copies <= 1.3
        moved_bytes = sum(n.traffic.received_bytes for n in nodes)
        assert moved_bytes <= 3 * (size + assets_bytes) * 1.02
        assert sum(n.traffic.sent_bytes for n in nodes) + owner.traffic.sent_bytes == moved_bytes


async def test_publishing_does_not_wait_for_a_node_that_is_dead(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with (
        learner(hub, tmp_path / "l") as owner,
        node(hub, tmp_path / "n", connect_to=[owner.network]) as joined,
    ):
        hub.kill(joined.network.peer)
        began_s = trio.current_time()
        await owner.publish(0)
        assert trio.current_time() - began_s < 0.1


async def test_a_late_joiner_gets_the_version_from_a_node_when_the_learner_is_gone(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(learner(hub, tmp_path / "l"))
        published = await owner.publish(5)
        early = await stack.enter_async_context(
            node(hub, tmp_path / "n1", number=1, connect_to=[owner.network])
        )
        await early.sync.next_version(None)
        hub.kill(LEARNER)
        late = await stack.enter_async_context(
            node(hub, tmp_path / "n2", number=2, connect_to=[early.network])
        )
        with trio.fail_after(120):
            held = await late.sync.next_version(None)

        assert held.manifest == published.manifest
        assert late.traffic.received_from.keys() == {early.network.peer}


async def test_a_restarted_node_goes_on_with_the_chunks_it_had(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        published = await owner.publish(0)
        root = published.manifest.weights.root_sha256
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as first:
            payload = await first.library.store.wait_for(root)
            await payload.wait_for_news(9)
            assert first.sync.held is None
        had_bytes = first.traffic.received_bytes
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as second:
            again = second.library.store.get(root)
            assert again is not None
            num_kept = again.num_held
            assert num_kept >= 10
            with trio.fail_after(60):
                await second.sync.next_version(None)
        assert had_bytes + second.traffic.received_bytes <= SIZE + 3 * MIN_CHUNK_BYTES + 100
        assert second.traffic.received_bytes <= SIZE - (num_kept - 1) * MIN_CHUNK_BYTES


async def test_a_restarted_node_holds_what_it_held_without_any_network(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        await owner.publish(4)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            before = await joined.sync.next_version(None)
    async with node(hub, tmp_path / "n", is_synced=False) as alone:
        assert alone.sync.held == before
        assert alone.sync.known_version == 4


async def test_a_newer_version_overtakes_a_transfer_that_is_under_half_done(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        old = await owner.publish(0, size=200 * MIN_CHUNK_BYTES)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            payload = await joined.library.store.wait_for(old.manifest.weights.root_sha256)
            await payload.wait_for_news(20)
            await owner.publish(1)
            with trio.fail_after(120):
                held = await joined.sync.next_version(None)

            assert held.version == 1
            assert joined.library.versions == (PolicyVersion(1),)
            # What was begun of the old one does not stay behind.
            assert joined.library.store.get(old.manifest.weights.root_sha256) is None


async def test_a_transfer_that_is_over_half_done_is_finished_first(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        old = await owner.publish(0)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            payload = await joined.library.store.wait_for(old.manifest.weights.root_sha256)
            await payload.wait_for_news(22)
            await owner.publish(1)
            with trio.fail_after(120):
                first = await joined.sync.next_version(None)
                second = await joined.sync.next_version(first.version)

            assert (first.version, second.version) == (0, 1)


async def test_an_older_manifest_changes_nothing(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        old = await owner.publish(0, announce=False)
        await owner.publish(1)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            held = await joined.sync.next_version(None)
            await owner.network.publish(topic_of(RUN), old.sealed)
            await trio.sleep(60)

            assert joined.sync.held == held
            assert joined.sync.known_version == 1
            assert joined.sync.take_reports() == ()


async def test_a_forged_manifest_is_refused_and_reported(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        held = await owner.publish(0)
        forged = manifest_protocol.sign_manifest(held.manifest, STRANGER_KEY)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            await joined.sync.next_version(None)
            await owner.network.publish(topic_of(RUN), forged)
            await trio.sleep(10)

            (report,) = joined.sync.take_reports()
            assert (report.peer_id, report.reason, report.count) == (
                LEARNER,
                Reason.BAD_SIGNATURE,
                1,
            )
            assert joined.sync.take_reports() == ()
            assert joined.sync.held is not None
            assert joined.sync.held.version == 0


async def test_a_version_whose_weights_are_not_those_signed_never_counts(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        good = await owner.publish(0)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            before = await joined.sync.next_version(None)
            bad = await owner.publish(1, announce=False)
            fields = {f: getattr(bad.manifest, f) for f in bad.manifest.__struct_fields__}
            lying = type(bad.manifest)(**(fields | {"weights_sha256": bytes(32)}))
            await owner.announcer.announce(manifest_protocol.sign_manifest(lying, LEARNER_KEY))
            await trio.sleep(30)

            assert joined.sync.known_version == 1
            assert joined.sync.held == before
            assert joined.library.versions == (PolicyVersion(0),)
            assert (before.weights / "model.safetensors").read_bytes() == (
                good.weights / "model.safetensors"
            ).read_bytes()

            await owner.publish(2)
            with trio.fail_after(60):
                assert (await joined.sync.next_version(before.version)).version == 2


async def test_a_full_disk_leaves_what_was_held_and_the_node_recovers(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with learner(hub, tmp_path / "l") as owner:
        await owner.publish(0)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            before = await joined.sync.next_version(None)
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", full)
                await owner.publish(1)
                await trio.sleep(60)
                assert joined.sync.held == before
                assert joined.library.get(PolicyVersion(1)) is None
                assert "no space left" in joined.sync.trouble
            with trio.fail_after(300):
                assert (await joined.sync.next_version(before.version)).version == 1
                await trio.sleep(1)
                assert joined.sync.trouble == ""


async def test_a_hint_makes_a_node_ask_for_a_manifest_that_gossip_lost(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        await owner.publish(0)
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            await joined.sync.next_version(None)
            held = await owner.publish(1, announce=False)
            owner.announcer._newest = held.sealed  # published, and gossip lost it
            joined.sync.hint(PolicyVersion(1))
            with trio.fail_after(60):
                assert (await joined.sync.next_version(PolicyVersion(0))).version == 1


async def test_versions_kept_are_as_many_as_the_manifest_says(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    rules = PolicyRules(sampling=RULES.sampling, max_staleness=2, publish_every=1)
    async with (
        learner(hub, tmp_path / "l") as owner,
        node(hub, tmp_path / "n", connect_to=[owner.network]) as joined,
    ):
        after = None
        for version in range(5):
            await owner.publish(version, size=3 * MIN_CHUNK_BYTES, rules=rules)
            with trio.fail_after(60):
                after = (await joined.sync.next_version(after)).version
        assert list(joined.library.versions) == [2, 3, 4]
        assert await joined.library.store.bytes_on_disk() < 5 * 3 * MIN_CHUNK_BYTES


async def test_nothing_is_left_running_when_a_sync_is_cancelled(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with learner(hub, tmp_path / "l") as owner:
        await owner.publish(0, size=200 * MIN_CHUNK_BYTES)
        before = trio.lowlevel.current_statistics().tasks_living
        async with node(hub, tmp_path / "n", connect_to=[owner.network]) as joined:
            await joined.library.store.wait_for(owner.library.newest.manifest.weights.root_sha256)  # type: ignore[union-attr]
            await trio.sleep(0.5)
        await trio.sleep(5)
        assert trio.lowlevel.current_statistics().tasks_living == before
    async with open_library(
        tmp_path / "n" / "library", run=RUN, learner_key=LEARNER_KEY.public_key()
    ) as library:
        assert library.newest is None
