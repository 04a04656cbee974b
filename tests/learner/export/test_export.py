"""``echo2-learner export``: a folder that anybody can load, or none."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from echo2swarm.cli_errors import Rim
from echo2swarm.errors import StoreError, UsageError
from learner.cli import learner
from learner.export.messages import Export
from learner.run_dir import RunDir
from learner.training.exporting import export
from learner.training.trainer import Trainer
from learner.training.weights import model_tensors
from tests.learner.export.run_folder import make_run
from tests.tiny_model import TINY_MODEL_DIR

pytestmark = [pytest.mark.model, pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, Trainer]:
    return make_run(tmp_path_factory.mktemp("runs") / "sorter", num_steps=2)


def called(*arguments: object) -> Result:
    return CliRunner().invoke(learner, ["export", *map(str, arguments)], obj=Rim())


def test_an_exported_run_loads_and_says_where_it_comes_from(
    run: tuple[RunDir, Trainer], tmp_path: Path
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


def test_a_step_and_a_type_can_be_chosen(run: tuple[RunDir, Trainer], tmp_path: Path) -> None:
    run_dir, _ = run
    checkpoint = run_dir.checkpoints.all()[0]
    call = Export(
        checkpoint_dir=str(checkpoint.trainer),
        model_dir=str(TINY_MODEL_DIR),
        folder=str(tmp_path / "out"),
        dtype="float32",
        card="",
    )

    export(call, lambda *_: None)

    saved = load_file(checkpoint.trainer / "model.safetensors")
    torch.testing.assert_close(load_file(tmp_path / "out" / "model.safetensors"), saved)


def test_what_does_not_load_as_it_was_saved_is_no_export(
    run: tuple[RunDir, Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr("learner.training.exporting._fill", lambda *_: None)

    with pytest.raises(StoreError, match=r"loads with another \S+ than the checkpoint has"):
        export(call, lambda *_: None)

    assert list(tmp_path.iterdir()) == []


def test_an_export_never_overwrites(run: tuple[RunDir, Trainer], tmp_path: Path) -> None:
    result = called(run[0].folder, tmp_path)

    assert isinstance(result.exception, UsageError)
    assert "exists already" in str(result.exception)


def test_what_is_not_there_is_named(run: tuple[RunDir, Trainer], tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path, tmp_path / "out"), "neither a run directory nor a checkpoint"),
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
