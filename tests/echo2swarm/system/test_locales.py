"""Text that the locale can't hold: never a traceback, in any of the programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo2swarm.system.errors import ConfigError, UsageError
from echo2swarm.system.locales import check_arguments
from echo2swarm.text.toml_tables import convert_table
from learner.config.tables import ModelConfig
from tests.tiny_model import TINY_MODEL_DIR

OLD_LOCALES = [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "latin-1"},
]


def run(
    module: str, *arguments: str | bytes, cwd: Path, **environment: str
) -> "subprocess.CompletedProcess[bytes]":
    root = str(Path(__file__).parents[3])
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**kept, "PYTHONPATH": root, **environment},
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.processes
@pytest.mark.parametrize("number", range(len(OLD_LOCALES)))
def test_a_path_that_the_locale_can_not_hold_is_taken_as_it_is(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "run \N{ROCKET}"
    folder.mkdir()
    (folder / "run.toml").write_text(
        f'[run]\nnum_steps = 3\n[model]\npath = "{TINY_MODEL_DIR}"\n'
        "[rollouts]\nmax_new_tokens = 6\n"
        f'[task]\nkind = "function"\nscore = "v:score"\nfolder = "."\npath = "rows.jsonl"\n'
    )
    (folder / "rows.jsonl").write_text('{"prompt": "1=\N{ROCKET}"}\n' * 3)
    (folder / "v.py").write_text("def score(text, item): return 1.0\n")

    result = run(
        "learner.cli",
        "serve",
        str(folder / "run.toml"),
        "--dry-run",
        cwd=tmp_path,
        **OLD_LOCALES[number],
    )

    assert b"Traceback" not in result.stderr
    assert result.returncode == 0, result.stderr
    shown = {"\N{ROCKET}".encode(), b"\\U0001f680"}
    assert any(text in result.stdout for text in shown)


@pytest.mark.processes
@pytest.mark.parametrize("number", range(len(OLD_LOCALES)))
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("learner.cli", ["export", "no \N{ROCKET}", "out"]),
        ("node.cli", ["status", "--state-dir", "no \N{ROCKET}"]),
        ("echo2swarm.cli", ["report", "no \N{ROCKET}"]),
    ],
)
def test_an_error_about_such_a_path_is_one_line(
    tmp_path: Path, number: int, module: str, arguments: list[str]
) -> None:
    result = run(module, *arguments, cwd=tmp_path, **OLD_LOCALES[number])

    assert result.returncode in {1, 2}
    assert b"Traceback" not in result.stderr
    assert b"is a bug" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.processes
def test_bytes_that_are_no_text_are_refused_with_what_to_do(tmp_path: Path) -> None:
    result = run("learner.cli", "export", b"no\xfftext", "out", cwd=tmp_path, LC_ALL="C.UTF-8")

    assert result.returncode == 2
    assert b'"no\\xfftext" is not text in UTF-8; rename it' in result.stderr


def test_text_of_a_configuration_that_no_file_could_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected text in UTF-8"):
        convert_table({"path": "no\udcfftext"}, ModelConfig, where="model")


def test_a_current_folder_whose_name_is_no_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"no\xfftext")
    folder.mkdir()
    monkeypatch.chdir(folder)

    with pytest.raises(UsageError, match="the path of the current folder is not text"):
        check_arguments(["export"])
