"""``echo2-learner`` from outside: quick help, no heavy imports, one line per error."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from learner.cli import learner
from learner.run.run_dir import open_run_dir
from tests.echo2swarm.models import test_loading
from tests.tiny_model import TINY_MODEL_DIR


def run(*arguments: str, cwd: Path, timeout_s: float = 50) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "learner.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_help_names_every_command() -> None:
    text = CliRunner().invoke(learner, ["--help"]).output

    assert all(command in text for command in ("serve", "init", "ticket"))


@pytest.mark.processes
def test_the_learner_s_process_loads_no_model_library() -> None:
    script = (
        "import sys, learner.app, learner.commands.serve, echo2swarm.network.libp2p.network; "
        "print([m for m in ('torch', 'transformers', 'reasoning_gym', 'math_verify') "
        "if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"


@pytest.mark.processes
def test_help_is_answered_without_the_rest_of_the_program() -> None:
    script = (
        "import sys, learner.cli; print([m for m in ('trio', 'msgspec', 'libp2p', 'structlog') "
        "if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"


@pytest.mark.processes
def test_a_configuration_can_be_printed_in_place_of_written(tmp_path: Path) -> None:
    printed = run("init", "-", cwd=tmp_path)
    run("init", cwd=tmp_path)

    assert printed.stdout == (tmp_path / "run.toml").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.processes
def test_a_dry_run_prints_what_a_resumed_run_would_read(tmp_path: Path) -> None:
    # Of a model that is on this machine: of another one it would say that it could not look.
    settings = (
        f"model.path={TINY_MODEL_DIR}",
        "task.kind=sort_digits",
        "rollouts.max_new_tokens=9",
    )
    tiny = tuple(part for each in settings for part in ("--set", each))
    printed = run(
        *("serve", "--dry-run", "--set", "run.num_steps=7", "--name", "x", *tiny), cwd=tmp_path
    )
    (tmp_path / "again.toml").write_text(printed.stdout)
    again = run("serve", "again.toml", "--dry-run", cwd=tmp_path)

    assert (printed.returncode, printed.stderr) == (0, "")
    assert "num_steps = 7" in printed.stdout
    assert again.stdout == printed.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("spoil", "setting", "said", "dry_run"),
    [
        (test_loading.wrapped, "run.seed=1", "base_model.model.NAME", True),
        (test_loading.with_nan, "run.seed=1", "3 values are NaN or infinite", False),
        (test_loading.same, "rollouts.max_new_tokens=256", "the model takes 64", True),
        (test_loading.same, 'task.stop=["x"]', "task.stop: 'x'", False),
    ],
)
def test_a_model_that_is_wrong_is_one_line_before_the_first_lease(
    tmp_path: Path,
    spoil: Callable[[test_loading.State], test_loading.State],
    setting: str,
    said: str,
    dry_run: bool,
) -> None:
    model = test_loading.variant(tmp_path / "model", spoil)
    (tmp_path / "data.jsonl").write_text('{"question": "1=", "answer": "1"}\n' * 20)
    arguments = [
        *("model.path=model", "rollouts.max_new_tokens=6", "task.kind=jsonl"),
        *('task.path="data.jsonl"', "task.template=plain", setting),
    ]

    result = run(
        *("serve", "--listen", "/ip4/127.0.0.1/tcp/0"),
        *(part for argument in arguments for part in ("--set", argument)),
        *(["--dry-run"] if dry_run else []),
        cwd=model.parent,
        timeout_s=200,
    )

    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 2, result.stderr
    assert last.startswith("echo2-learner: ")
    assert said in last
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("serve", "missing.toml"), 2, "missing.toml"),
        (("serve", "--set", "rollouts.max_stalenes=1"), 2, "max_staleness"),
        (("serve", "--set", "rollouts.publish_every=9"), 2, "publish_every"),
        (("serve", "--run-dir", "taken"), 2, "taken exists already"),
        (("serve", "--resume"), 2, "which run is to be resumed"),
        (("serve", "--resume", "--run-dir", "nowhere"), 2, "nowhere: there is no run to resume"),
        (("checkpoints", "nowhere"), 2, "nowhere: no such run directory"),
        (("checkpoints", "."), 2, ".: not a run directory"),
        (("fork", "nowhere", "--run-dir", "new"), 2, "nowhere: no such run directory"),
        (("eval", "base", "nowhere"), 2, "nowhere: no such folder"),
        (("eval", "base", "nowhere", "--device", "cudda"), 2, "'cudda' is none of"),
        (("export", "nowhere", "out"), 2, "nowhere: no such folder"),
        (("serve", "--dry-run", "--set", "model.path=nowhere"), 2, "model.path: model folder nowh"),
        (("ticket", "taken"), 2, "has a learner been started there"),
        (("serve", "--set", "model.path=nowhere", "--run-dir", "new"), 2, "nowhere"),
    ],
)
def test_wrong_use_is_one_line_and_exit_status_2(
    tmp_path: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    open_run_dir(tmp_path / "taken", name="test", resume=False).ledger.touch()

    result = run(*arguments, cwd=tmp_path)

    lines = result.stderr.strip().splitlines()
    assert result.returncode == status
    assert said in lines[-1]
    assert lines[-1].startswith("echo2-learner: ")
    assert "Traceback" not in result.stderr


@pytest.mark.processes
def test_a_run_that_failed_to_start_is_in_nobody_s_way(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        tries = [
            run(
                *("serve", "--listen", listen, "--set", "task.kind=sort_digits"),
                *("--set", "trainer.kind=sleep", "--set", f"model.path={TINY_MODEL_DIR}"),
                cwd=tmp_path,
            )
            for _ in range(2)
        ]

    for failed in tries:
        assert failed.returncode == 1
        assert "is in use" in failed.stderr.splitlines()[-1]
    assert (tmp_path / "runs" / "run" / "events.jsonl").exists()
