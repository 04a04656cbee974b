"""``swarm simulate`` as it is typed."""

import json
from pathlib import Path

import click.testing
import pytest

from echo2swarm.cli import swarm
from echo2swarm.system.errors import ConfigError, UsageError
from tests.echo2swarm.simulate.samples import TABLES

TOML = """
[run]
num_steps = 4
[learner]
prompts_per_step = 4
group_size = 4
train_s = 10.0
[[nodes]]
name = "node"
count = 4
rollouts_per_s = 0.8
"""


def run(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(
        swarm, ["simulate", *arguments], standalone_mode=False, catch_exceptions=True
    )


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    return str(file)


def test_a_scenario_is_simulated_and_shown(path: str) -> None:
    result = run(path)

    assert result.return_value == 0
    assert "small, seed 0: all steps are done" in result.output
    assert "model says" in result.output


def test_json_is_one_result_or_a_list_of_several(path: str) -> None:
    one, two = (
        json.loads(run(path, "--json").output),
        json.loads(run(path, "--json", "--seeds", "2").output),
    )

    assert one["busy_share"] == two[0]["busy_share"]
    assert [result["seed"] for result in two] == [0, 1]


def test_seeds_at_once_give_what_they_give_one_after_the_other(path: str) -> None:
    arguments = (path, "--json", "--seeds", "2", "--seed", "5")

    assert run(*arguments).output == run(*arguments, "--jobs", "2").output


def test_several_seeds_are_compared(path: str) -> None:
    assert "2 seeds" in run(path, "--seeds", "2").output


def test_results_and_pictures_are_left_in_a_folder(path: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    result = run(path, "--out", str(out))

    assert result.return_value == 0
    assert {file.name for file in out.iterdir()} == {
        "results.json",
        "timeline.png",
        "staleness.png",
        "supply.png",
        "nodes.png",
        "cost.png",
    }


def test_a_learner_that_got_stuck_is_a_failure(path: str) -> None:
    text = TOML.replace("[learner]", "give_up_s = 60.0\n[learner]")
    Path(path).write_text(text.replace("count = 4", "count = 4\nrefused_share = 1.0"))
    result = run(path)

    assert result.return_value == 1
    assert "stuck at step 0" in result.output


def test_what_is_wrong_is_told(path: str) -> None:
    Path(path).write_text(TOML.replace("count = 4", "count = 0"))

    assert isinstance(run(path).exception, ConfigError)
    assert isinstance(run("nowhere").exception, UsageError)
    assert isinstance(run().exception, click.UsageError)


def test_scenarios_are_listed_and_explained() -> None:
    assert "home\n" in run("--list").output
    assert run("--example").output.startswith("# A scenario")
    assert TABLES["name"] not in run("--list").output
