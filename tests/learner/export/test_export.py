"""``echo2-learner export``: a folder that anybody can load, or none."""

import json
import os
import stat
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from msgspec.structs import replace as replace_struct
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from echo2swarm.system.errors import StoreError, UsageError
from echo2swarm.text.cli_errors import error_boundary
from learner.cli import learner
from learner.export.card import model_card
from learner.export.messages import Export
from learner.export.source import find_checkpoint, hold_checkpoint
from learner.run.checkpoint_store import Checkpoint, CheckpointStore
from learner.run.run_dir import RunDir
from learner.trainer.exporting import write_model_folder
from learner.trainer.trainer import PolicyTrainer
from learner.trainer.weights import model_tensors
from tests.learner.export.run_folder import make_run
from tests.tiny_model import TINY_MODEL_DIR

pytestmark = [pytest.mark.model, pytest.mark.processes]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, PolicyTrainer]:
    return make_run(tmp_path_factory.mktemp("runs") / "sorter", num_steps=2)


def called(*arguments: object) -> Result:
    return CliRunner().invoke(learner, ["export", *map(str, arguments)], obj=error_boundary())


def test_an_exported_run_loads_and_says_where_it_comes_from(
    run: tuple[RunDir, PolicyTrainer], tmp_path: Path
) -> None:
    run_dir, trainer = run
    out = tmp_path / "out"

    result = called(run_dir.folder, out, "--json")

    assert result.exception is None, result.output
    record = json.loads(result.stdout)
    assert (record["run_id"], record["step"], record["dtype"]) == (run_dir.run_id, 2, "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == torch.bfloat16
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert "lm_head.weight" not in load_file(out / "model.safetensors")
    for name, tensor in model_tensors(trainer._model).items():
        assert torch.equal(model_tensors(model)[name], tensor.to(torch.bfloat16)), name
    assert record["num_tensors"] == len(model_tensors(model))
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(tokenizer("312=").input_ids) == "312="
    card = (out / "README.md").read_text()
    for text in (run_dir.run_id, "| step | 2 of 4 |", record["config_sha256"]):
        assert text in card


def test_a_step_and_a_type_can_be_chosen(run: tuple[RunDir, PolicyTrainer], tmp_path: Path) -> None:
    run_dir, _ = run
    checkpoint = run_dir.checkpoints.all()[0]
    call = Export(
        checkpoint_dir=str(checkpoint.trainer),
        model_dir=str(TINY_MODEL_DIR),
        folder=str(tmp_path / "out"),
        dtype="float32",
        card="",
    )

    write_model_folder(call, lambda *_: None)

    saved = load_file(checkpoint.trainer / "model.safetensors")
    torch.testing.assert_close(load_file(tmp_path / "out" / "model.safetensors"), saved)


def test_what_does_not_load_as_it_was_saved_is_no_export(
    run: tuple[RunDir, PolicyTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, _ = run
    call = Export(
        checkpoint_dir=str(run_dir.checkpoints.all()[0].trainer),
        model_dir=str(TINY_MODEL_DIR),
        folder=str(tmp_path / "out"),
        dtype="float32",
        card="",
    )
    # The model as it was before training.
    monkeypatch.setattr("learner.trainer.exporting._fill", lambda *_: None)

    with pytest.raises(StoreError, match=r"loads with another \S+ than the checkpoint has"):
        write_model_folder(call, lambda *_: None)

    assert list(tmp_path.iterdir()) == []


def test_an_export_never_overwrites(run: tuple[RunDir, PolicyTrainer], tmp_path: Path) -> None:
    result = called(run[0].folder, tmp_path)

    assert isinstance(result.exception, UsageError)
    assert "exists already" in str(result.exception)


def test_what_is_not_there_is_named(run: tuple[RunDir, PolicyTrainer], tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path, tmp_path / "out"), "neither a run directory nor a checkpoint"),
        ((tmp_path / "nowhere", tmp_path / "out"), "nowhere: no such folder"),
        (
            (run[0].folder, tmp_path / "out", "--step", 7),
            "no checkpoint of step 7; there are: 1, 2",
        ),
        (
            (run[0].checkpoints.all()[0].folder, tmp_path / "out", "--step", 1),
            "--step is for a run directory",
        ),
    ):
        result = called(*arguments)
        assert isinstance(result.exception, UsageError)
        assert message in str(result.exception)


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    run_dir, _ = make_run(tmp_path / "sorter", num_steps=1)
    path = run_dir.checkpoints.all()[0].trainer / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    result = called(run_dir.folder, tmp_path / "out")

    assert isinstance(result.exception, StoreError)
    assert "is damaged: trainer/model.safetensors is not what was saved" in str(result.exception)
    assert [path.name for path in run_dir.checkpoints.folder.iterdir()] == ["step-00000001"]


def test_a_checkpoint_that_the_run_deletes_meanwhile_is_exported_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, _ = make_run(tmp_path / "sorter", num_steps=2)

    async def prepare(_path: str) -> Path:
        # After the checkpoint was chosen, and before the child reads it.
        run_dir.checkpoints._discard(run_dir.checkpoints.all()[-1].folder)
        run_dir.checkpoints.clean()
        return TINY_MODEL_DIR

    monkeypatch.setattr("learner.commands.export.prepare_model", prepare)

    result = called(run_dir.folder, tmp_path / "out", "--json")

    assert result.exception is None, result.output
    assert json.loads(result.stdout)["step"] == 2
    assert (tmp_path / "out" / "config.json").is_file()
    assert [path.name for path in run_dir.checkpoints.folder.iterdir()] == ["step-00000001"]


def deleting(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, *, num: int) -> None:
    """Have the newest checkpoint vanish when it is about to be held, ``num`` times."""
    hold = CheckpointStore.hold
    left = [num]

    def hold_late(
        store: CheckpointStore, checkpoint: Checkpoint, *, elsewhere: Path
    ) -> AbstractContextManager[Checkpoint]:
        if left[0]:
            left[0] -= 1
            run_dir.checkpoints._discard(checkpoint.folder)
        return hold(store, checkpoint, elsewhere=elsewhere)

    monkeypatch.setattr(CheckpointStore, "hold", hold_late)


def test_of_a_run_that_deletes_one_the_next_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, _ = make_run(tmp_path / "sorter", num_steps=2)
    deleting(run_dir, monkeypatch, num=1)

    with hold_checkpoint(run_dir.folder, step=None, elsewhere=tmp_path) as trained:
        assert trained.checkpoint.step == 1


@pytest.mark.parametrize("named_by", ["step", "folder", "run"])
def test_of_what_was_deleted_meanwhile_it_is_said_that_the_run_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    run_dir, _ = make_run(tmp_path / "sorter", num_steps=4)
    folder = run_dir.checkpoints.all()[-1].folder if named_by == "folder" else run_dir.folder
    deleting(run_dir, monkeypatch, num=3 if named_by == "run" else 1)

    with (
        pytest.raises(StoreError, match="the run has deleted it meanwhile"),
        hold_checkpoint(folder, step=4 if named_by == "step" else None, elsewhere=tmp_path),
    ):
        pass


def test_an_expected_error_of_the_child_is_one_line_and_more_only_if_asked_for(
    run: tuple[RunDir, PolicyTrainer], tmp_path: Path
) -> None:
    def said(*arguments: str) -> list[str]:
        result = subprocess.run(
            [sys.executable, "-m", "learner.cli", "export", run[0].folder, "/proc/foo", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1
        return [line for line in result.stderr.splitlines() if "can't write /proc/foo" in line]

    (line,) = said()
    assert line.startswith("echo2-learner: can't write /proc/foo")
    assert len(said("--verbose")) == 2


def test_all_files_can_be_read_by_those_whom_the_umask_lets(
    run: tuple[RunDir, PolicyTrainer], tmp_path: Path
) -> None:
    call = Export(
        checkpoint_dir=str(run[0].checkpoints.all()[0].trainer),
        model_dir=str(TINY_MODEL_DIR),
        folder=str(tmp_path / "out"),
        dtype="float32",
        card="",
    )
    before = os.umask(0o027)
    try:
        write_model_folder(call, lambda *_: None)
    finally:
        os.umask(before)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in modes
    assert set(modes.values()) == {0o640}


@pytest.mark.parametrize(
    ("path", "name"), [("/home/ann/models/tiny", "tiny"), ("ann/tiny", "ann/tiny")]
)
def test_the_card_names_the_base_without_its_place(
    run: tuple[RunDir, PolicyTrainer], path: str, name: str
) -> None:
    trained = find_checkpoint(run[0].folder, step=None)
    config = replace_struct(
        trained.run.config, model=replace_struct(trained.run.config.model, path=path)
    )
    moved = replace(trained, run=replace(trained.run, config=config))

    card = model_card(moved, dtype="float32", version="1", unix_day="2026-01-01")

    assert f'base_model: "{name}"' in card
    assert f"| model trained | {name} |" in card
    assert "/home" not in card
