"""Run directories: made once, found again, never mixed up."""

from pathlib import Path

import pytest

from echo2swarm.errors import StoreError, UsageError
from learner.run_dir import RunDir, open_run_dir, write_atomically
from tests.echo2swarm.full_disk import full_disk


def new(folder: Path) -> RunDir:
    return open_run_dir(folder, name="test", resume=False)


def saved(run_dir: RunDir, step: int, *, keep: int = 2) -> None:
    run_dir.begin_checkpoint(step).mkdir()
    run_dir.complete_checkpoint(step, keep=keep)


def test_a_run_keeps_its_id_when_resumed(tmp_path: Path) -> None:
    made = new(tmp_path / "run")
    found = open_run_dir(tmp_path / "run", name="other", resume=True)

    assert found.run_id == made.run_id
    assert made.run_id.startswith("test-")


def test_a_directory_that_holds_something_is_not_a_new_run(tmp_path: Path) -> None:
    new(tmp_path / "run").ledger.touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()

    for name in ("run", "other"):
        with pytest.raises(UsageError, match="exists already; go on with that run by --resume"):
            new(tmp_path / name)


def test_a_run_may_begin_where_one_failed_before_it_had_a_ledger(tmp_path: Path) -> None:
    failed = new(tmp_path / "run")

    assert new(tmp_path / "run").run_id != failed.run_id


def test_a_file_that_can_not_be_written_is_named_and_no_draft_is_left(tmp_path: Path) -> None:
    with full_disk(after_bytes=10), pytest.raises(OSError, match="too large") as caught:
        write_atomically(tmp_path / "status.json", b"x" * 100)

    assert caught.value.filename == str(tmp_path / "status.json")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory_may_become_a_run(tmp_path: Path) -> None:
    assert new(tmp_path).folder == tmp_path


def test_there_is_nothing_to_resume_where_no_run_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run to resume"):
        open_run_dir(tmp_path / "run", name="test", resume=True)


def test_a_damaged_run_file_is_named(tmp_path: Path) -> None:
    run_dir = new(tmp_path / "run")
    (run_dir.folder / "run.json").write_text("{")

    with pytest.raises(StoreError, match=r"run\.json is damaged"):
        open_run_dir(tmp_path / "run", name="test", resume=True)


def test_only_complete_checkpoints_count_and_the_newest_are_kept(tmp_path: Path) -> None:
    run_dir = new(tmp_path / "run")
    for step in (10, 20, 30):
        saved(run_dir, step)
    run_dir.begin_checkpoint(40).mkdir()
    newest, oldest = run_dir.newest_checkpoint(), run_dir.oldest_checkpoint()

    assert newest is not None
    assert oldest is not None
    assert (oldest.step, newest.step) == (20, 30)
    assert newest.trainer.is_dir()


def test_what_a_killed_process_left_unfinished_is_removed(tmp_path: Path) -> None:
    run_dir = new(tmp_path / "run")
    saved(run_dir, 10)
    run_dir.begin_checkpoint(20).mkdir()
    (run_dir.snapshots / "step-1").mkdir(parents=True)

    run_dir.clean()

    assert [path.name for path in run_dir.checkpoints.iterdir()] == ["step-00000010"]
    assert not run_dir.snapshots.exists()


def test_the_checkpoint_of_another_run_is_not_taken(tmp_path: Path) -> None:
    run_dir, other = new(tmp_path / "run"), new(tmp_path / "other")
    saved(other, 10)
    (other.checkpoints / "step-00000010").rename(run_dir.checkpoints / "step-00000010")

    assert run_dir.newest_checkpoint() is None


def test_versions_beyond_a_step_are_forgotten(tmp_path: Path) -> None:
    run_dir = new(tmp_path / "run")
    versions = run_dir.weights / "versions"
    versions.mkdir(parents=True)
    for version in (4, 5, 6):
        (versions / f"{version:08d}.manifest").touch()

    run_dir.forget_versions_after(5)

    assert sorted(path.stem for path in versions.iterdir()) == ["00000004", "00000005"]
