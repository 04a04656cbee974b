"""What is typed in place of a ticket, and what is said to it."""

import io
import sys
from pathlib import Path

import pytest

from echo2swarm.system.errors import UsageError
from echo2swarm.text.ticket import typed_ticket

COMMAND = "echo2-node join"


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        typed_ticket(text, command=COMMAND)
    return str(caught.value)


def type_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_a_ticket_is_taken_as_it_is_or_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, b" echo2-1:abc \nand more\n")

    assert typed_ticket(" echo2-1:x/y\n", command=COMMAND) == "echo2-1:x/y"
    assert typed_ticket("-", command=COMMAND) == "echo2-1:abc"


@pytest.mark.parametrize("text", ["", "  ", "hello", "é" * 5000, "a\0b"])
def test_what_is_none_is_answered_with_how_to_read_one_from_a_file(text: str) -> None:
    assert "echo2-node join - < FILE" in refusal(text)


def test_a_path_is_answered_with_the_command_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ticket.txt").touch()

    assert refusal("ticket.txt").endswith("echo2-node join - < ticket.txt")
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "t.txt").touch()
    assert refusal("my run/t.txt").endswith("echo2-node join - < 'my run/t.txt'")
    assert refusal("my run/other.txt").endswith("no such file or folder")


def test_a_run_directory_is_answered_with_the_ticket_in_it(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)).endswith(
        "is a folder, not a ticket; to read one from a file: echo2-node join - < FILE"
    )
    (tmp_path / "ticket.txt").touch()

    assert refusal(str(tmp_path)).endswith(f"echo2-node join - < {tmp_path}/ticket.txt")


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "empty line"), (b"\n\n", "empty line"), (b"\xff\xfe", "no text"), (b"a/b", "starts")],
)
def test_standard_input_without_a_ticket_is_told(
    monkeypatch: pytest.MonkeyPatch, data: bytes, said: str
) -> None:
    type_in(monkeypatch, data)

    assert said in refusal("-")
