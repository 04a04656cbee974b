"""Which versions are held, kept and pinned."""

import dataclasses
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from echo2swarm.system.errors import DoesNotFitError, StoreError
from echo2swarm.weights.publish import PolicyRules, publish_version
from echo2swarm.weights.store.library import HeldVersion, VersionLibrary, open_library, quota_for
from protocols.errors import LocalProtocolError
from protocols.ids import PolicyVersion, RunId
from tests.echo2swarm.weights.made import LEARNER_KEY, RULES, RUN, STRANGER_KEY, assets, snapshot

PUBLIC = LEARNER_KEY.public_key()


async def publish(
    library: VersionLibrary, folder: Path, version: int, *, rules: PolicyRules = RULES
) -> HeldVersion:
    base = folder / "model"
    return await publish_version(
        library,
        version=PolicyVersion(version),
        snapshot=snapshot(folder / f"v{version}", seed=version),
        assets=base if base.exists() else assets(base),
        rules=rules,
        key=LEARNER_KEY,
    )


async def test_only_the_newest_versions_are_kept(tmp_path: Path) -> None:
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        held = [await publish(library, tmp_path, v) for v in range(4)]

        assert list(library.versions) == [2, 3]  # S + 1 = 2
        assert [h.weights.exists() for h in held] == [False, False, True, True]
        assert len(list((tmp_path / "lib" / "payloads").iterdir())) == 3  # two, and the assets
        assert len(list((tmp_path / "lib" / "versions").iterdir())) == 2


async def test_space_is_bounded_however_many_versions_come(tmp_path: Path) -> None:
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        sizes = []
        for version in range(8):
            await publish(library, tmp_path, version)
            sizes.append(await library.store.bytes_on_disk())
        assert max(sizes[2:]) == sizes[1]


async def test_a_pinned_version_outlives_its_time_and_goes_when_unpinned(tmp_path: Path) -> None:
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        await publish(library, tmp_path, 0)
        with library.pin(PolicyVersion(0)) as held:
            for version in range(1, 5):
                await publish(library, tmp_path, version)
            assert (held.weights / "model.safetensors").read_bytes()
            assert (held.assets / "config.json").read_bytes()
            assert list(library.versions) == [0, 3, 4]
        await publish(library, tmp_path, 5)
        assert list(library.versions) == [4, 5]
        assert not held.weights.exists()
        with pytest.raises(StoreError, match="version 0 is not held"), library.pin(held.version):
            pass


async def test_what_was_held_is_held_again_by_the_next_process(tmp_path: Path) -> None:
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        held = [await publish(library, tmp_path, v) for v in range(2)]

    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        assert [library.get(h.version) for h in held] == held
        assert library.newest == held[1]


async def test_a_version_whose_weights_were_damaged_is_not_held_again(tmp_path: Path) -> None:
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        held = await publish(library, tmp_path, 7)
        (held.weights / "model.safetensors").write_bytes(b"short")

    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        assert list(library.versions) == []


@pytest.mark.parametrize(
    ("run", "key"), [(RunId("other"), LEARNER_KEY), (RUN, STRANGER_KEY)], ids=["run", "key"]
)
async def test_versions_of_another_run_or_learner_are_not_held(
    tmp_path: Path, run: RunId, key: object
) -> None:
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        await publish(library, tmp_path, 7)

    public = LEARNER_KEY.public_key() if key is LEARNER_KEY else STRANGER_KEY.public_key()
    async with open_library(tmp_path / "lib", run=run, learner_key=public) as library:
        assert list(library.versions) == []


async def test_a_version_without_its_bytes_cannot_become_held(tmp_path: Path) -> None:
    async with open_library(tmp_path / "one", run=RUN, learner_key=PUBLIC) as library:
        held = await publish(library, tmp_path, 1)
    async with open_library(tmp_path / "two", run=RUN, learner_key=PUBLIC) as library:
        with pytest.raises(LocalProtocolError, match="not complete"):
            await library.add(held.manifest, held.sealed)
        assert library.newest is None


async def test_a_waiter_gets_the_newest_version_that_is_newer_than_its_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    got: list[int] = []

    async def wait(after: PolicyVersion | None) -> None:
        got.append((await library.next_version(after)).version)

    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        await publish(library, tmp_path, 3)
        await wait(None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, PolicyVersion(3))
            await trio.sleep(60)
            assert got == [3]
            await publish(library, tmp_path, 4)
        assert got == [3, 4]


async def test_a_quota_keeps_fewer_versions_and_leaves_room_for_the_next(tmp_path: Path) -> None:
    rules = dataclasses.replace(RULES, max_staleness=5)
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        held = [await publish(library, tmp_path, v, rules=rules) for v in range(4)]
        assert list(library.versions) == [0, 1, 2, 3]

        library.quota_bytes = quota_for(held[-1].manifest)
        await library.prune()
        assert list(library.versions) == [3]

        library.quota_bytes += held[-1].manifest.weights.size_bytes
        await publish(library, tmp_path, 4, rules=rules)
        assert list(library.versions) == [3, 4]
        await publish(library, tmp_path, 5, rules=rules)
        assert list(library.versions) == [4, 5]


async def test_what_can_never_fit_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        manifest = (await publish(library, tmp_path, 0)).manifest
        library.check_fits(manifest)
        library.quota_bytes = quota_for(manifest)
        library.check_fits(manifest)
        library.quota_bytes -= 1
        with pytest.raises(DoesNotFitError, match="--disk-gb 1"):
            library.check_fits(manifest)
