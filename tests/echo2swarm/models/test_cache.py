"""Folders in the cache: made once, whole, and by one process."""

import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from echo2swarm.models.cache import (
    CACHE_DIR_VARIABLE,
    SEAL,
    cache_dir,
    is_intact,
    make_once,
    torch_env,
)
from echo2swarm.system.errors import StoreError


def test_torch_keeps_few_kernels_unless_the_user_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    monkeypatch.delenv("LRU_CACHE_CAPACITY", raising=False)

    env = torch_env()

    assert env["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    assert env["LRU_CACHE_CAPACITY"] == "64"


def fill(folder: Path) -> None:
    (folder / "small").write_bytes(b"abc")
    (folder / "large").write_bytes(bytes(3 << 20))


def must_not_be_called(folder: Path) -> None:
    raise AssertionError(f"{folder} was made again")


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    folder = make_once(tmp_path / "a" / "model", fill)

    assert (folder / "small").read_bytes() == b"abc"
    assert make_once(folder, must_not_be_called) == folder
    assert [path.name for path in (tmp_path / "a").iterdir() if path.is_dir()] == ["model"]


@pytest.mark.parametrize("name", ["small", "large", SEAL])
def test_a_folder_with_a_missing_file_is_made_again(tmp_path: Path, name: str) -> None:
    folder = make_once(tmp_path / "model", fill)
    (folder / name).unlink()

    assert not is_intact(folder)
    assert is_intact(make_once(folder, fill))


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_folder_with_a_file_cut_short_is_made_again(tmp_path: Path, name: str) -> None:
    folder = make_once(tmp_path / "model", fill)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1])

    make_once(folder, fill)

    assert (folder / name).read_bytes() == data


def test_a_small_file_that_was_changed_is_noticed(tmp_path: Path) -> None:
    folder = make_once(tmp_path / "model", fill)
    (folder / "small").write_bytes(b"abd")

    assert not is_intact(folder)


def test_a_failure_leaves_nothing_behind_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_bytes(b"1")
        raise StoreError("no network")

    with pytest.raises(StoreError, match="no network"):
        make_once(tmp_path / "model", fail)

    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert is_intact(make_once(tmp_path / "model", fill))


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    partial = tmp_path / ".model.partial"
    partial.mkdir()
    (partial / "half").write_bytes(b"1")

    folder = make_once(tmp_path / "model", fill)

    assert not (folder / "half").exists()


def test_a_cache_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreError, match=rf"^can't write .*; .*{CACHE_DIR_VARIABLE}[^\n]*$"):
        make_once(tmp_path / "file" / "model", fill)


def fill_and_count(folder: Path) -> None:
    with (folder.parent / "made").open("a") as file:
        file.write("x")
    fill(folder)


def test_two_processes_at_once_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=make_once, args=(tmp_path / "model", fill_and_count))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)

    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "made").read_text() == "x"


@pytest.mark.parametrize("home", ["/proc/nowhere", "FILE"])
def test_without_a_home_that_can_be_written_the_cache_is_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv(CACHE_DIR_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home.replace("FILE", str(tmp_path / "file")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    folder = cache_dir()

    assert folder == cache_dir() == tmp_path / f"echo2swarm-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Path(torch_env()["TORCHINDUCTOR_CACHE_DIR"]).is_dir()


def test_a_temporary_folder_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_DIR_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs = tmp_path / f"echo2swarm-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)

    with pytest.raises(StoreError, match=f"set {CACHE_DIR_VARIABLE} to a folder"):
        cache_dir()


def test_a_cache_that_was_chosen_and_can_not_be_written_names_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, "/proc/nowhere")

    with pytest.raises(
        StoreError, match=f"can't write /proc/nowhere/torch; set {CACHE_DIR_VARIABLE}"
    ):
        torch_env()


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path))
    assert cache_dir() == tmp_path

    monkeypatch.delenv(CACHE_DIR_VARIABLE)
    assert cache_dir().name == "echo2swarm"
