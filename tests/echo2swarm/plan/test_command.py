"""``swarm plan`` as people and programs call it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from echo2swarm.cli import swarm
from echo2swarm.system.errors import UsageError
from tests.echo2swarm.plan.test_measured import run_dir
from tests.test_packaging import ROOT


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(swarm, ["plan", *arguments], standalone_mode=False)


def example(tmp_path: Path, **replaced: str) -> str:
    text = plan("--example").stdout
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return str(path)


def as_json(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_example_makes_a_plan(tmp_path: Path) -> None:
    result = plan(example(tmp_path))

    assert result.return_value == 0
    assert "activate       17 x RTX 4090" in result.stdout
    assert "<- the plan" in result.stdout
    assert "centralised: 4 x data centre GPU" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 110


def test_json_holds_the_plan_and_what_it_goes_by(tmp_path: Path) -> None:
    result = plan(example(tmp_path), "--json")

    found = as_json(result)
    assert result.return_value == 0
    assert found["is_feasible"]
    assert found["best"]["max_staleness"] == 2
    assert found["best"]["nodes"] == {"RTX 4090": 17}
    assert found["best"]["forecast"]["utilisation"] == 1.0
    assert [option["max_staleness"] for option in found["by_staleness"]] == list(range(7))
    assert found["assumptions"]["learner"]["train_s"] == 300.0
    assert found["baselines"][0]["saving"] > 0


def test_no_plan_is_an_answer_with_what_would_make_one(tmp_path: Path) -> None:
    path = example(tmp_path, **{"count = 200": "count = 2", "count = 20\n": "count = 1\n"})
    result = plan(path)

    assert result.return_value == 1
    assert "there is no plan that keeps the learner busy; it would take" in result.stdout
    assert "more nodes like" in result.stdout


def test_no_plan_is_valid_json_with_the_reason_beside_it(tmp_path: Path) -> None:
    result = plan(example(tmp_path), "--json", "--max-staleness", "0")

    assert result.return_value == 1
    assert as_json(result)["best"] is None
    assert as_json(result)["shortfall"]["max_staleness"] == 1
    assert "max_staleness = 1" in result.stderr


def test_an_empty_market_is_no_division_by_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[learner]\ntrain_s = 10\n")

    result = plan(str(path), "--json")

    assert result.return_value == 1
    assert as_json(result)["by_staleness"][0]["usd_per_step"] is None


def test_the_bound_can_be_limited_from_outside(tmp_path: Path) -> None:
    found = as_json(plan(example(tmp_path), "--json", "--max-staleness", "1"))

    assert found["best"]["max_staleness"] == 1
    assert len(found["by_staleness"]) == 2


def test_a_picture_is_drawn_into_a_file_or_a_folder(tmp_path: Path) -> None:
    path = example(tmp_path)

    into_file = plan(path, "--png", str(tmp_path / "x.png"))
    into_folder = plan(path, "--png", str(tmp_path))

    assert into_file.return_value == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert f"picture: {tmp_path / 'plan.png'}" in into_folder.stderr


def test_a_picture_of_no_plan_is_drawn_too(tmp_path: Path) -> None:
    result = plan(example(tmp_path), "--max-staleness", "0", "--png", str(tmp_path))

    assert result.return_value == 1
    assert (tmp_path / "plan.png").exists()


def test_a_run_can_be_planned_with(tmp_path: Path) -> None:
    folder = str(run_dir(tmp_path / "run"))
    result = plan("--run", folder, "--json")

    found = as_json(result)
    assert as_json(plan(folder, "--json")) == found, "in the file's place, too"
    assert found["assumptions"]["learner"]["train_s"] == 6.0
    assert found["shortfall"]["add"]["like"] == "node-a 00000001"


def test_a_run_and_a_file_together_make_the_market(tmp_path: Path) -> None:
    result = plan(example(tmp_path), "--run", str(run_dir(tmp_path / "run")), "--json")

    names = {offer["name"] for offer in as_json(result)["assumptions"]["offer"]}
    assert names == {"node-a 00000001", "RTX 4090", "A100"}


def test_without_anything_to_go_by_it_says_what_is_needed() -> None:
    result = plan()

    assert isinstance(result.exception, UsageError)
    assert "swarm plan --example" in str(result.exception)


@pytest.mark.parametrize("content", ["[learner]\nx = 1\n", "not toml", ""])
def test_bad_files_are_one_line_and_a_status(content: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(content)

    result = subprocess.run(
        [sys.executable, "-m", "echo2swarm.cli", "plan", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    if content:
        assert result.returncode == 2
        assert result.stderr.startswith(f"swarm: {path}: ")
        assert result.stderr.count("\n") == 1
    else:
        assert result.returncode == 1
        assert "there is no plan" in result.stdout


def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "plan.md").read_text()
    shown = page.partition("```text\n")[2].partition("\n...\n```")[0].splitlines()

    printed = [line.rstrip() for line in plan(example(tmp_path)).stdout.splitlines()]

    assert printed[: len(shown)] == shown
    assert "the plan" in shown[-1]


def test_where_the_solver_is_not_installed_a_plan_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)

    result = plan(example(tmp_path))

    assert isinstance(result.exception, UsageError)
    assert "install it, or the extra [learner]" in str(result.exception)
