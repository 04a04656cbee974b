"""The systemd unit: right, private, and with no secret in it."""

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from echo2swarm.system.errors import UsageError
from echo2swarm.text.cli_errors import explain_error
from node.cli import node
from node.systemd import environment_text, service_paths, unit_text
from tests.node.test_cli import write_ticket

ODD = "a b$HOME%h\"'\\;"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(node, ["service", *arguments], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.output


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("node.systemd._systemctl", lambda *_: False)
    return tmp_path


def test_printing_writes_nothing_and_shows_everything_but_the_ticket(home: Path) -> None:
    ticket = write_ticket()
    said = run("install", "--print", ticket, "--hours", "22:00-07:00", "--engine", "sleep")

    assert list(home.iterdir()) == []
    assert "--hours 22:00-07:00 --engine sleep" in said
    assert "KillSignal=SIGINT" in said
    assert str(home / "systemd/user/echo2-node.service") in said
    assert ticket not in said
    # Among the options of join, where it is easily put.
    assert run("install", ticket, "--hours", "22:00-07:00", "--engine", "sleep", "--print") == said
    assert list(home.iterdir()) == []


def test_another_unit_is_written_over_the_first_with_how_to_have_it_used() -> None:
    first = run("install", write_ticket(), "--engine", "sleep")
    second = run("install", write_ticket(), "--engine", "sleep", "--price", "1")

    assert "enable --now echo2-node.service" in first
    assert "restart echo2-node.service" in second
    assert "--price 1" in run("show")


def test_what_is_installed_can_be_shown_and_removed(home: Path) -> None:
    ticket = write_ticket()
    run("install", ticket, "--engine", "sleep")

    unit, secret = home / "systemd/user/echo2-node.service", home / "echo2swarm/echo2-node.env"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_text() == f"ECHO2_TICKET={ticket}\n"
    assert ticket not in unit.read_text()
    assert unit.read_text() in run("show")
    assert "mode 0600" in run("show")

    run("uninstall")
    assert not unit.exists()
    assert not secret.exists()
    assert "nothing to remove" in run("uninstall")
    assert "not installed" in run("show")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["install", "hello"], "a ticket starts with"),
        (["install", write_ticket(), "--hourz", "x"], "--hourz"),
        (["install", write_ticket(), "--price", "-1"], "--price"),
        (["install", write_ticket(), "--hours", "25:00-07:00"], "25:00"),
        (["install", write_ticket(), "--listen", "foo"], "--listen 'foo'"),
        (["install", write_ticket(), "--engine-option", "foo=1"], "no engine option 'foo'"),
        (["install", "--service-name", "../x", write_ticket()], "service name"),
    ],
)
def test_what_join_would_refuse_is_refused_before_anything_is_written(
    home: Path, arguments: list[str], says: str
) -> None:
    result = CliRunner().invoke(node, ["service", *arguments], standalone_mode=False)

    assert result.exception is not None
    ending = explain_error(result.exception)
    assert ending.status == 2
    assert says in ending.line
    assert list(home.iterdir()) == []


def test_options_reach_the_program_as_they_were_typed() -> None:
    paths = service_paths("default", config_home=Path("/c"))
    text = unit_text("default", paths, command=["/bin/echo2-node"], options=["--name", ODD])

    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert line.endswith('--name "a b$$HOME%%h\\"\'\\\\;"')
    with pytest.raises(UsageError, match="line break"):
        unit_text("default", paths, command=["/x"], options=["a\nExecStart=/bin/false"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    paths = service_paths("attic", config_home=tmp_path)
    program = shutil.which("true") or "/bin/true"
    paths.unit.parent.mkdir(parents=True)
    paths.unit.write_text(unit_text("attic", paths, command=[program], options=["--name", ODD]))
    paths.environment.parent.mkdir(parents=True)
    paths.environment.write_text(environment_text("x"))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(paths.unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    told = [line for line in done.stderr.splitlines() if paths.unit.name in line]
    assert told == []
