"""Run directories: made once, found again, never mixed up."""

import os
from pathlib import Path

import pytest

from echo2swarm.system.errors import StoreError, UsageError
from echo2swarm.system.files import write_atomically
from learner.run.run_dir import RunDir, hold, open_run_dir
from tests.echo2swarm.full_disk import full_disk


def new(folder: Path) -> RunDir:
    return open_run_dir(folder, name="test", resume=False)


def saved(run_dir: RunDir, step: int) -> None:
    run_dir.checkpoints.begin(step).mkdir()
    run_dir.checkpoints.complete(step)


def test_a_run_keeps_its_id_when_resumed(tmp_path: Path) -> None:
    made = new(tmp_path / "run")
    made.ledger.touch()
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


def test_a_run_may_begin_where_one_failed_before_it_had_told_its_ticket(tmp_path: Path) -> None:
    failed = new(tmp_path / "run")
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "events.jsonl"):
        (failed.folder / name).touch()
    (failed.weights / "versions").mkdir(parents=True)

    failed.forget_start()

    assert new(tmp_path / "run").run_id != failed.run_id
    assert not failed.weights.exists()
    assert failed.events.exists(), "it says why the first one failed"


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


def test_what_a_killed_process_left_unfinished_is_removed(tmp_path: Path) -> None:
    run_dir = new(tmp_path / "run")
    saved(run_dir, 10)
    run_dir.checkpoints.begin(20).mkdir()
    (run_dir.snapshots / "step-1").mkdir(parents=True)

    run_dir.clean()

    assert [path.name for path in run_dir.checkpoints.folder.iterdir()] == ["step-00000010"]
    assert not run_dir.snapshots.exists()


def test_the_checkpoint_of_another_run_is_not_taken(tmp_path: Path) -> None:
    run_dir, other = new(tmp_path / "run"), new(tmp_path / "other")
    saved(other, 10)
    saved_there = other.checkpoints.folder / "step-00000010"
    saved_there.rename(run_dir.checkpoints.folder / "step-00000010")

    assert run_dir.newest_checkpoint() is None


def test_versions_beyond_a_step_are_forgotten(tmp_path: Path) -> None:
    run_dir = new(tmp_path / "run")
    versions = run_dir.weights / "versions"
    versions.mkdir(parents=True)
    for version in (4, 5, 6):
        (versions / f"{version:08d}.manifest").touch()

    run_dir.forget_versions_after(5)

    assert sorted(path.stem for path in versions.iterdir()) == ["00000004", "00000005"]


def test_a_run_that_has_done_nothing_is_not_resumed(tmp_path: Path) -> None:
    new(tmp_path / "run")

    with pytest.raises(UsageError, match="nothing yet that could be resumed"):
        open_run_dir(tmp_path / "run", name="test", resume=True)


def test_a_run_whose_ledger_is_gone_is_neither_resumed_nor_begun_anew(tmp_path: Path) -> None:
    saved(new(tmp_path / "run"), 10)

    with pytest.raises(StoreError, match=r"ledger\.sqlite is missing.*echo2-learner fork"):
        open_run_dir(tmp_path / "run", name="test", resume=True)
    with pytest.raises(UsageError, match="exists already"):
        new(tmp_path / "run")


def test_a_second_learner_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with (
        hold(tmp_path / "run"),
        pytest.raises(UsageError, match=rf"at work there already \(process {os.getpid()}\)"),
        hold(tmp_path / "run"),
    ):
        pass

    with hold(tmp_path / "run"):  # it let go of it
        new(tmp_path / "run")


def test_a_folder_in_which_no_run_came_to_be_is_not_left(tmp_path: Path) -> None:
    with pytest.raises(UsageError), hold(tmp_path / "run"):
        raise UsageError("wrong")

    assert list(tmp_path.iterdir()) == []
