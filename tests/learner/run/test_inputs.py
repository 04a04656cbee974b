"""What a run depends on is known by its content: a change is never gone on with unnoticed."""

import os
import shutil
from pathlib import Path

import pytest
import structlog
import trio

from echo2swarm.system.errors import ConfigError, StoreError
from echo2swarm.system.files import sha256_of_file
from learner.run import inputs
from learner.run.inputs import (
    Recorded,
    changes_on_disk,
    hold_to_inputs,
    model_inputs,
    read_inputs,
    write_inputs,
)
from learner.tasks.inputs import HasInputs, Input
from learner.tasks.registry import open_task
from tests.tiny_model import TINY_MODEL_DIR

ROWS = '{"question": "1 + 1?", "answer": 2}\n{"question": "2 + 2?", "answer": 4}\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY_MODEL_DIR, tmp_path / "model"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(ROWS)
    return path


def inputs_of(table: dict[str, object]) -> tuple[Input, ...]:
    task, _ = open_task(table, seed=0)
    assert isinstance(task, HasInputs)
    return task.inputs


def of_data(data: Path) -> tuple[Input, ...]:
    return inputs_of({"kind": "jsonl", "path": str(data), "score": "exact", "held_out_share": 0})


async def hold(
    path: Path, model: Path, task: tuple[Input, ...], *, resume: bool = True, accept: bool = False
) -> bool:
    return await hold_to_inputs(path, model, task, is_resumed=resume, accept=accept)


async def test_a_run_goes_on_with_what_it_began_with(
    tmp_path: Path, model: Path, data: Path
) -> None:
    path = tmp_path / "inputs.json"

    await hold(path, model, of_data(data), resume=False)
    recorded = path.read_bytes()
    with structlog.testing.capture_logs() as events:
        assert await hold(path, model, of_data(data)) is False

    assert (events, path.read_bytes()) == ([], recorded)
    found = read_inputs(path)
    assert found is not None
    names = {(each.key, Path(each.name).name) for each in found.inputs}
    assert names >= {
        ("task.path", "rows.jsonl"),
        ("model.path", "config.json"),
        ("model.path", "tokenizer.json"),
        ("model.path", "model.safetensors"),
    }


async def test_data_with_a_line_more_is_refused_until_it_is_accepted(
    tmp_path: Path, model: Path, data: Path
) -> None:
    path = tmp_path / "inputs.json"
    await hold(path, model, of_data(data), resume=False)
    await trio.Path(data).write_text('{"question": "0 + 0?", "answer": 0}\n' + ROWS)

    with pytest.raises(
        ConfigError, match=r"^task\.path: \S+rows\.jsonl has changed \(SHA-256 "
    ) as e:
        await hold(path, model, of_data(data))
    assert "--accept-changed-inputs" in str(e.value)
    assert "\n" not in str(e.value)

    with structlog.testing.capture_logs() as events:
        assert await hold(path, model, of_data(data), accept=True) is True
    assert [event["event"] for event in events] == ["inputs.changed"]
    assert await hold(path, model, of_data(data)) is False


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
async def test_a_model_whose_files_changed_is_refused(
    tmp_path: Path, model: Path, name: str
) -> None:
    path = tmp_path / "inputs.json"
    await hold(path, model, (), resume=False)
    with (model / name).open("ab") as file:
        file.write(b" ")

    with pytest.raises(ConfigError, match=rf"^model\.path: {name} has changed"):
        await hold(path, model, ())
    assert await hold(path, model, (), accept=True) is False, "prompts are the same"


async def test_a_model_that_has_a_file_more_or_less_is_refused(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "inputs.json"
    await hold(path, model, (), resume=False)
    (model / "generation_config.json").write_text("{}")
    (model / "tokenizer_config.json").unlink()

    with pytest.raises(ConfigError, match=r"generation_config\.json is new \(and 1 more\)"):
        await hold(path, model, ())


def test_large_weights_are_read_again_only_if_size_or_time_say_so(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_LARGE_BYTES", 0)
    before = model_inputs(model, None)
    weights = model / "model.safetensors"
    read: list[str] = []

    def hashed(path: Path) -> str:
        read.append(path.name)
        return sha256_of_file(path)

    monkeypatch.setattr(inputs, "sha256_of_file", hashed)

    assert model_inputs(model, before) == before
    assert read == []
    os.utime(weights, ns=(1, 1))
    assert model_inputs(model, before).inputs == before.inputs
    assert read == [weights.name]


async def test_a_run_of_older_software_is_recorded_with_a_warning(
    tmp_path: Path, model: Path, data: Path
) -> None:
    path = tmp_path / "inputs.json"

    with structlog.testing.capture_logs() as events:
        assert await hold(path, model, of_data(data)) is False

    assert [(event["event"], event["log_level"]) for event in events] == [
        ("inputs.recorded", "warning")
    ]
    assert read_inputs(path) is not None


def test_a_record_that_is_damaged_says_so(tmp_path: Path) -> None:
    for content in (b"{", b"\xff", b"[" * 100_000):
        (tmp_path / "inputs.json").write_bytes(content)
        with pytest.raises(StoreError, match=r"inputs\.json is damaged"):
            read_inputs(tmp_path / "inputs.json")


def test_a_verifier_is_its_module_and_what_that_imports_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_helper.py").write_text("RIGHT = 1.0\n")
    (tmp_path / "my_scores.py").write_text(
        "from my_helper import RIGHT\n"
        "def score(text, item): return RIGHT\n"
        "def make_prompt(index, seed): return str(index)\n"
    )
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    table: dict[str, object] = {
        "kind": "function",
        "folder": str(tmp_path),
        "score": "my_scores:score",
        "make_prompt": "my_scores:make_prompt",
    }

    before = inputs_of(table)
    assert {Path(each.name).name for each in before} == {"my_helper.py", "my_scores.py"}
    assert changes_on_disk(before) == []
    (tmp_path / "my_helper.py").write_text("RIGHT = 0.5\n")

    (found,) = changes_on_disk(before)
    assert found.startswith(f"task.score: {tmp_path / 'my_helper.py'} has changed (SHA-256 ")
    assert inputs_of(table) != before


def test_packages_that_reward_are_known_by_their_version(data: Path) -> None:
    table: dict[str, object] = {"kind": "jsonl", "path": str(data), "held_out_share": 0}

    versions = {each.name: each.identity for each in inputs_of(table)}

    assert versions["math-verify"][0].isdigit()
    old = [Input("task.score", "math-verify", "0.0.1")]
    assert changes_on_disk(old) == [
        f"task.score: math-verify has changed (0.0.1 then, {versions['math-verify']} now)"
    ]


def test_what_is_gone_is_named(tmp_path: Path, data: Path) -> None:
    recorded = Recorded(of_data(data))
    write_inputs(tmp_path / "inputs.json", recorded)
    data.unlink()

    assert read_inputs(tmp_path / "inputs.json") == recorded
    assert changes_on_disk(recorded.inputs) == [f"task.path: {data} is gone"]
