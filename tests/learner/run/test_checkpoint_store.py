"""Checkpoints on disk: whole or told to be not, found again, deleted by rule."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.run.checkpoint_store import (
    POSITION,
    Checkpoint,
    CheckpointStore,
    Unreadable,
    damage_of,
    replay_floor,
)
from protocols.ids import RunId
from tests.echo2swarm.full_disk import full_disk

RUN = RunId("run-1")


def store_in(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", RUN)


def save(store: CheckpointStore, step: int) -> Checkpoint:
    folder = store.begin(step)
    (folder / "shard").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    (folder / "shard" / "0.bin").write_bytes(b"moments")
    return store.complete(step)


def steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.all()]


def test_a_saved_checkpoint_is_found_with_all_its_files(tmp_path: Path) -> None:
    saved = save(store_in(tmp_path), 10)
    (found,) = store_in(tmp_path).all()

    assert found == saved
    assert set(found.position.files) == {"trainer/model.safetensors", "trainer/shard/0.bin"}
    assert found.size_bytes == 707
    assert damage_of(found) is None


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["trainer/model.safetensors", "trainer/shard/0.bin"])
@pytest.mark.parametrize(
    ("damage", "told"),
    [(flip_a_bit, "its hash differs"), (cut, "bytes instead of"), (Path.unlink, "is missing")],
)
def test_whatever_was_damaged_is_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None], told: str
) -> None:
    saved = save(store_in(tmp_path), 10)

    damage(saved.folder / name)

    fault = damage_of(saved)
    assert fault is not None
    assert fault.startswith(name)
    assert told in fault


def test_a_checkpoint_that_was_begun_and_not_completed_does_not_count(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    save(store, 10)
    store.begin(20).mkdir()

    assert steps(store) == [10]
    store.clean()
    assert [path.name for path in store.folder.iterdir()] == ["step-00000010"]


def test_a_folder_without_a_readable_position_is_told_of_and_does_not_count(
    tmp_path: Path,
) -> None:
    store = store_in(tmp_path)
    cut(save(store, 10).folder / POSITION)

    (found,) = store.survey()

    assert isinstance(found, Unreadable)
    assert steps(store) == []


def test_a_full_disk_leaves_the_checkpoints_that_there_are(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    save(store, 10)
    (store.begin(20)).mkdir()

    with full_disk(after_bytes=10), pytest.raises(OSError, match="too large"):
        store.complete(20)
    store.abandon(20)

    assert [path.name for path in store.folder.iterdir()] == ["step-00000010"]


def test_the_newest_are_kept_and_some_for_ever(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for step in range(10, 80, 10):
        save(store, step)
        store.prune(keep=2, keep_every_steps=30)

    assert steps(store) == [30, 60, 70]


def test_what_a_resume_passed_over_is_kept_and_counts_no_more(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    aside = store.set_aside(save(store, 10))
    save(store, 20)
    store.prune(keep=1, keep_every_steps=0)
    store.clean()

    assert steps(store) == [20]
    assert aside.is_dir()


def test_a_folder_that_somebody_else_deletes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = store_in(tmp_path), store_in(tmp_path)
    for step in (10, 20):
        save(mine, step)
    seen = mine.all()
    theirs.prune(keep=1, keep_every_steps=0)
    monkeypatch.setattr(mine, "all", lambda: seen)

    mine.prune(keep=1, keep_every_steps=0)

    assert steps(theirs) == [20]


def test_a_held_checkpoint_stays_whole_though_the_run_deletes_it(tmp_path: Path) -> None:
    run, other = store_in(tmp_path), store_in(tmp_path)
    old = save(run, 10)
    save(run, 20)

    with other.hold(old, elsewhere=tmp_path) as held:
        run.prune(keep=1, keep_every_steps=0)
        run.clean()

        assert steps(run) == [20]
        assert not old.folder.exists()
        assert damage_of(held) is None
        assert held.step == 10
    assert [path.name for path in run.folder.iterdir()] == ["step-00000020"]


def test_a_checkpoint_that_is_gone_can_not_be_held(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    old = save(store, 10)
    save(store, 20)
    store.prune(keep=1, keep_every_steps=0)

    with pytest.raises(FileNotFoundError), store.hold(old, elsewhere=tmp_path):
        pass

    assert [path.name for path in store.folder.iterdir()] == ["step-00000020"]


@pytest.mark.parametrize("when", ["prune", "clean"])
def test_what_nobody_holds_any_more_is_removed(tmp_path: Path, when: str) -> None:
    store = store_in(tmp_path)
    save(store, 10)
    left = store.folder / ".held-x"
    left.mkdir()

    if when == "prune":
        store.prune(keep=1, keep_every_steps=0)
    else:
        store.clean()

    assert not left.exists()


@given(st.sets(st.integers(1, 100)), st.integers(1, 4), st.integers(0, 3))
def test_updates_stay_repeatable_from_as_many_ways_back_as_are_kept(
    saved: set[int], keep: int, first_step: int
) -> None:
    ways_back = sorted({first_step, *(step for step in saved if step > first_step)})
    floor = replay_floor(ways_back, first_step=first_step, keep=keep)

    usable = [step for step in ways_back if step >= floor]
    assert len(usable) == min(keep, len(ways_back))
