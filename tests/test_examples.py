"""Each example is in the list, can be started as it stands, and says what it reached."""

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from learner.config.file import load_config
from learner.config.places import check_places
from learner.demo.swarm import open_swarm
from learner.tasks.base import ChecksAnswers
from learner.tasks.registry import open_task
from tests.e2e.swarms import JOIN_S, LOOPBACK
from tests.test_packaging import ROOT

EXAMPLES = ROOT / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/run.toml"))


def answer_in_data(prompt: str) -> str:
    lines = (EXAMPLES / "jsonl-mathematics" / "data.jsonl").read_text().splitlines()
    answers = {row["question"]: row["answer"] for row in map(json.loads, lines)}
    question = prompt.rpartition("Question: ")[2].partition("\n")[0]
    return f" {answers[question]}"


ANSWERS: dict[str, Callable[[str], str]] = {
    "jsonl-mathematics": answer_in_data,
    "task-package": lambda prompt: "".join(sorted(prompt[:-1], reverse=True)),
    "verifier": lambda prompt: max(prompt[:-1]),
}
"""By example: from a prompt to the completion that gets the whole reward."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Python find the examples' packages and their entry points, as after pip install."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for path in EXAMPLES.glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        folder = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        (folder / "entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{name} = {module}\n" for name, module in names.items())
                for group, names in project["entry-points"].items()
            )
        )
        monkeypatch.syspath_prepend(path.parent)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(EXAMPLES)):
            del sys.modules[name]


def test_every_example_is_in_the_list_and_has_its_figures() -> None:
    listed = (EXAMPLES / "README.md").read_text()

    assert set(NAMES) == set(ANSWERS)
    for name in NAMES:
        readme = (EXAMPLES / name / "README.md").read_text()
        assert f"({name}/README.md)" in listed
        assert "mean reward" in readme
        assert f"examples/{name}/run.toml" in readme


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_read_and_its_verifier_knows_right_answers_from_wrong_ones(
    name: str,
) -> None:
    config = load_config(EXAMPLES / name / "run.toml", environment={})
    check_places(config)
    task, _ = open_task(config.task, seed=config.run.seed)
    if isinstance(task, ChecksAnswers):
        num_checked, num_answers = task.check_answers(limit_s=60)
        assert num_checked == num_answers > 0

    assert config.run.name == name
    for index in range(config.rollouts.prompts_per_step):
        prompt = task.prompt(index)
        assert isinstance(prompt, str)
        assert task.score(index, ANSWERS[name](prompt)) == 1.0
        assert task.score(index, "=") == 0.0


@pytest.mark.processes
@pytest.mark.timeout(600)
async def test_an_example_trains(tmp_path: Path) -> None:
    small = (
        "run.num_steps=2",
        "rollouts.prompts_per_step=2",
        "trainer.threads=1",
        "checkpoint.every_steps=0",
        f'swarm.listen=["{LOOPBACK}"]',
    )
    config = load_config(EXAMPLES / "verifier" / "run.toml", small, environment={})
    async with open_swarm(tmp_path / "swarm") as swarm:
        ticket = await swarm.start_learner(config, timeout_s=JOIN_S)
        await swarm.start_node("ada", ticket, arguments=("--listen", LOOPBACK))
        await swarm.wait_finished(timeout_s=JOIN_S)
        status = swarm.status()
        rewards = [record["reward_mean"] for record in swarm.metrics()]

    assert status is not None
    assert (status.phase, status.learner_step) == ("finished", 2)
    assert len(rewards) == 2
    assert all(0 <= reward <= 1 for reward in rewards)
