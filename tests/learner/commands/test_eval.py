"""What an evaluation leaves behind."""

import tempfile
from pathlib import Path

import pytest

from echo2swarm.system.errors import SwarmError
from learner.commands.eval import scratch_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def write(scratch: Path) -> None:
    (scratch / "model-0").mkdir()
    (scratch / "model-0" / "model.safetensors").touch()
    (scratch / "engine.log").touch()


def fail(error: BaseException) -> None:
    with scratch_folder() as scratch:
        write(scratch)
        raise error


def test_nothing_is_left_of_one_that_is_done_or_interrupted(folder: Path) -> None:
    with scratch_folder() as scratch:
        write(scratch)
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())

    assert list(folder.iterdir()) == []


def test_the_logs_that_an_error_names_stay_and_models_do_not(folder: Path) -> None:
    with pytest.raises(SwarmError):
        fail(SwarmError("the engine died; its log: ..."))

    (scratch,) = folder.iterdir()
    assert [path.name for path in scratch.iterdir()] == ["engine.log"]
