import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from protocols.status import StatusReply
from tests.echo2swarm.sample_run import write_run
from tests.echo2swarm.sample_status import STATUS, status_with


def swarm(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "echo2swarm.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={k: v for k, v in os.environ.items() if k not in ("ECHO2_TICKET", "COLUMNS")},
    )


def run_dir_with(status: StatusReply, folder: Path) -> str:
    (folder / "status.json").write_bytes(msgspec.json.encode(status))
    return str(folder)


def assert_one_line(result: subprocess.CompletedProcess[str], *, status: int, says: str) -> None:
    assert result.returncode == status
    assert result.stderr.startswith("swarm: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_the_state_of_a_run_that_goes_on_is_shown_as_plain_text(tmp_path: Path) -> None:
    result = swarm("status", "--run", run_dir_with(status_with(at_unix_s=time.time()), tmp_path))

    assert result.returncode == 0
    assert result.stdout.startswith("run demo-7f3a  training\n")
    assert "\x1b" not in result.stdout


def test_a_run_directory_will_do_in_place_of_a_ticket(tmp_path: Path) -> None:
    result = swarm("status", "--json", run_dir_with(STATUS, tmp_path))

    assert msgspec.json.decode(result.stdout, type=StatusReply) == STATUS
    (tmp_path / "status.json").write_text("{")
    assert_one_line(swarm("status", str(tmp_path)), status=1, says="is not the status of a run")


def test_json_is_the_reply_itself(tmp_path: Path) -> None:
    result = swarm("status", "--json", "--run", run_dir_with(STATUS, tmp_path))

    assert msgspec.json.decode(result.stdout, type=StatusReply) == STATUS


def test_a_learner_that_has_stopped_writing_is_not_well(tmp_path: Path) -> None:
    result = swarm("status", "--run", run_dir_with(STATUS, tmp_path))

    assert result.returncode == 1
    assert " old: is the learner at work?" in result.stdout


@pytest.mark.parametrize(("phase", "exit_status"), [("finished", 0), ("failed", 1)])
def test_watching_ends_with_the_run(phase: str, exit_status: int, tmp_path: Path) -> None:
    status = status_with(phase=phase, at_unix_s=time.time())

    result = swarm("status", "--watch", "--run", run_dir_with(status, tmp_path))

    assert result.returncode == exit_status
    assert result.stdout.startswith(f"run demo-7f3a  {phase}\n")


def test_a_missing_run_directory_is_one_line(tmp_path: Path) -> None:
    result = swarm("status", "--run", str(tmp_path / "none"))

    assert_one_line(result, status=2, says="no such run directory")


def test_a_run_directory_without_a_status_is_one_line(tmp_path: Path) -> None:
    assert_one_line(swarm("status", "--run", str(tmp_path)), status=1, says="no status yet")


def test_a_ticket_cut_short_is_one_line() -> None:
    assert_one_line(swarm("status", "echo2-1:AQk"), status=2, says="cut short")


def test_a_ticket_can_come_from_standard_input() -> None:
    assert_one_line(swarm("status", "-", stdin="hello\n"), status=2, says="starts with 'echo2-1:'")


def test_without_a_ticket_it_says_how_to_give_one() -> None:
    assert_one_line(swarm("status"), status=2, says="ECHO2_TICKET")


def test_a_report_is_written_and_its_path_printed(tmp_path: Path) -> None:
    write_run(tmp_path / "run")

    result = swarm("report", str(tmp_path / "run"))

    assert result.returncode == 0
    assert Path(result.stdout.strip()) == tmp_path / "run" / "report" / "report.md"


def test_looking_at_a_directory_loads_neither_a_network_nor_a_model_library(tmp_path: Path) -> None:
    folder = run_dir_with(STATUS, tmp_path)
    program = (
        "import sys; from echo2swarm.cli import swarm; "
        f"swarm.main(['status', '--json', '--run', {folder!r}], standalone_mode=False); "
        "print(sorted({'libp2p', 'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )

    assert result.stdout.splitlines()[-1] == "[]"
