"""``echo2-learner eval`` with the tiny model, by its real engine and scorer."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from echo2swarm.system.errors import UsageError
from echo2swarm.text.cli_errors import error_boundary
from learner.cli import learner
from tests.learner.export.run_folder import make_run
from tests.tiny_model import TINY_MODEL_DIR

pytestmark = [pytest.mark.model, pytest.mark.processes]


def called(*arguments: object) -> Result:
    return CliRunner().invoke(learner, ["eval", *map(str, arguments)], obj=error_boundary())


def test_a_run_is_compared_with_what_it_began_with(tmp_path: Path) -> None:
    run_dir, _ = make_run(tmp_path / "sorter", num_steps=1)

    options = ("--prompts", 24, "--samples", 3, "--threads", 1, "--json")

    result = called("base", run_dir.folder, TINY_MODEL_DIR, *options)

    assert result.exception is None, result.output
    record = json.loads(result.stdout)
    assert record["run_id"] == run_dir.run_id
    base, trained, same = record["models"]
    assert trained["model"] == "sorter step 1"
    for model in record["models"]:
        assert (model["num_prompts"], model["samples_per_prompt"]) == (24, 3)
        for name in ("mean_at_k", "pass_at_1", "pass_at_k", "greedy_accuracy"):
            estimate = model[name]
            assert 0 <= estimate["low"] <= estimate["value"] <= estimate["high"] <= 1
    # Asked to sort three digits it does so half the time; likelier when it is not left to chance.
    assert 0.2 < base["mean_at_k"]["value"] < 0.8
    assert base["greedy_accuracy"]["value"] >= base["mean_at_k"]["value"]
    # The same weights with the same seeds: the same completions.
    assert same["mean_difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert "of 288 completions" in result.stderr
    assert "left" in result.stderr


def test_what_can_not_be_evaluated_is_named(tmp_path: Path) -> None:
    for arguments, message in (
        (("base",), "which run's task"),
        ((TINY_MODEL_DIR,), "which run's task"),
        ((tmp_path / "nowhere",), "nowhere: no such folder"),
        (("base", tmp_path / "nowhere"), "nowhere: no such folder"),
        ((tmp_path,), "neither a run directory nor a checkpoint"),
    ):
        result = called(*arguments)
        assert isinstance(result.exception, UsageError)
        assert message in str(result.exception)
