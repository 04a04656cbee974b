"""``echo2-learner ticket``."""

import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from echo2swarm.system.errors import StoreError
from echo2swarm.text.cli_errors import error_boundary
from learner.cli import learner
from protocols import ticket
from tests.protocols.samples import KEY, RUN, TICKET


def shown(run_dir: Path) -> Result:
    return CliRunner().invoke(learner, ["ticket", str(run_dir)], obj=error_boundary())


def line_until(expires_unix_s: float) -> str:
    return ticket.format_ticket(
        msgspec.structs.replace(TICKET, expires_unix_s=int(expires_unix_s)), KEY
    )


def test_a_ticket_that_admits_is_printed_and_nothing_else(tmp_path: Path) -> None:
    line = line_until(time.time() + 3600)
    (tmp_path / "ticket.txt").write_text(f"{line}\n")

    result = shown(tmp_path)

    assert (result.stdout, result.stderr) == (f"{line}\n", "")


def test_an_expired_one_is_printed_with_a_warning_that_says_how_to_renew_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "my run"
    folder.mkdir()
    line = line_until(time.time() - 2 * 3600)
    (folder / "ticket.txt").write_text(f"{line}\n")

    result = shown(folder)

    assert result.stdout == f"{line}\n"
    assert "expired 2.0 h ago" in result.stderr
    assert f"echo2-learner serve --resume --run-dir '{folder}'" in result.stderr
    assert RUN not in result.stderr


@pytest.mark.parametrize("data", [b"", b"\xff", line_until(2e9)[:-9].encode()])
def test_a_damaged_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "ticket.txt").write_bytes(data)

    result = shown(tmp_path)

    assert isinstance(result.exception, StoreError)
    assert "when it starts" in str(result.exception)
    assert result.stdout == ""
