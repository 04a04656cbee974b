"""Files that stay though another process deletes them."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from learner.run.hold_files import hold_files, remove_abandoned

NAMES = ("a", "b/c")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "b").mkdir(parents=True)
    for name in NAMES:
        (folder / name).write_text(name)
    return folder


def test_held_files_outlive_their_source_and_take_no_room(source: Path, tmp_path: Path) -> None:
    with hold_files(source, NAMES, [tmp_path]) as folder:
        assert (folder / "a").samefile(source / "a")
        for name in NAMES:
            (source / name).unlink()
        assert [(folder / name).read_text() for name in NAMES] == list(NAMES)

    assert not folder.exists()


def test_they_are_copied_where_links_can_not_be(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)

    with hold_files(source, NAMES, [tmp_path]) as folder:
        assert [(folder / name).read_text() for name in NAMES] == list(NAMES)
        assert not (folder / "a").samefile(source / "a")


def test_the_first_parent_that_can_be_written_is_taken(source: Path, tmp_path: Path) -> None:
    with hold_files(source, NAMES, [Path("/proc"), tmp_path]) as folder:
        assert folder.parent == tmp_path

    with pytest.raises(FileNotFoundError), hold_files(source, NAMES, [Path("/proc")]):
        pass


def test_a_file_that_is_gone_is_told_and_nothing_is_left(source: Path, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())

    with pytest.raises(FileNotFoundError), hold_files(source, ["a", "gone"], [tmp_path]):
        pass

    assert set(tmp_path.iterdir()) == before


@pytest.mark.processes
def test_what_a_killed_process_held_is_removed_and_what_a_living_one_holds_is_not(
    source: Path, tmp_path: Path
) -> None:
    script = f"""
import os, signal
from pathlib import Path
from learner.run.hold_files import hold_files
with hold_files(Path({str(source)!r}), ["a"], [Path({str(tmp_path)!r})]) as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()

    with hold_files(source, NAMES, [tmp_path / "nowhere", tmp_path]) as folder:
        assert not left.exists()
        remove_abandoned(tmp_path)
        assert (folder / "a").exists()


def test_a_lock_is_what_tells_them_apart(tmp_path: Path) -> None:
    folder = tmp_path / ".held-x"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    remove_abandoned(tmp_path)
    assert folder.exists()

    os.close(descriptor)
    remove_abandoned(tmp_path)
    assert not folder.exists()
