"""Every way a command may end: one line, and its exit status."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.system.errors import ChildError, ConfigError, StoreError, SwarmError
from echo2swarm.text.cli_errors import error_boundary, explain_error, run_cli
from protocols.errors import LocalProtocolError, MalformedMessageError


def command_that_raises(exc: BaseException, crash_folder: Path | None = None) -> click.Command:
    @click.command()
    @click.option("--verbose", is_flag=True)
    @click.option("--steps", type=int)
    @click.pass_obj
    def command(rim: error_boundary, *, verbose: bool, steps: int | None) -> None:
        rim.verbose = verbose
        rim.crash_folder = crash_folder
        raise exc

    return command


def end(command: click.Command, arguments: Sequence[str] = ()) -> int:
    with pytest.raises(SystemExit) as caught:
        run_cli(command, program="echo2-test", arguments=arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("exc", "status", "line"),
    [
        (StoreError("disk is odd"), 1, "echo2-test: disk is odd"),
        (ConfigError("run.toml: no such key"), 2, "echo2-test: run.toml: no such key"),
        (MalformedMessageError("ticket is cut short"), 1, "echo2-test: ticket is cut short"),
        (KeyboardInterrupt(), 130, "echo2-test: interrupted"),
        (SwarmError("two\nlines"), 1, "echo2-test: two lines"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/run"),
            1,
            "echo2-test: /data/run: no space left on the disk; free some, then start again",
        ),
        (
            OSError(
                errno.EADDRINUSE,
                "error while attempting to bind on address ('127.0.0.1', 4150): in use",
            ),
            1,
            "echo2-test: 127.0.0.1:4150: the address is in use; stop the program that listens "
            "there, or choose another port",
        ),
        (
            FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "run.toml"),
            1,
            "echo2-test: run.toml: No such file or directory",
        ),
        (ExceptionGroup("", [ExceptionGroup("", [StoreError("a")])]), 1, "echo2-test: a"),
        (
            ExceptionGroup("", [StoreError("a"), StoreError("a"), ChildError("b")]),
            1,
            "echo2-test: a (and 1 more)",
        ),
        (
            BaseExceptionGroup("", [StoreError("a"), KeyboardInterrupt()]),
            130,
            "echo2-test: interrupted",
        ),
    ],
)
def test_an_expected_error_is_one_line_and_its_status(
    exc: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(command_that_raises(exc)) == status

    captured = capsys.readouterr()
    # click ends the line on which the terminal showed ^C
    assert captured.err.lstrip("\n") == line + "\n"
    assert captured.out == ""


def test_a_wrong_option_is_a_usage_error_that_names_it_and_where_help_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert end(command_that_raises(SwarmError()), ["--steps", "many"]) == 2

    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--steps" in err
    assert "echo2-test --help" in err


def test_help_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert end(command_that_raises(SwarmError()), ["--help"]) == 0

    assert "--steps" in capsys.readouterr().out


def test_a_group_without_a_command_shows_its_help_and_ends_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = click.Group("g", commands={"join": command_that_raises(SwarmError())})

    assert end(group) == 2

    assert "Commands:\n  join" in capsys.readouterr().err


def test_a_bug_is_one_line_and_its_traceback_lies_in_the_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(command_that_raises(ZeroDivisionError("oh"), tmp_path)) == 1

    (log,) = tmp_path.iterdir()
    assert "command_that_raises" in log.read_text() or "raise exc" in log.read_text()
    assert capsys.readouterr().err == (
        f"echo2-test: ZeroDivisionError: oh (this is a bug; details in {log})\n"
    )


def test_a_bug_with_verbose_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert end(command_that_raises(ZeroDivisionError("oh")), ["--verbose"]) == 1

    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_told_even_where_its_details_can_not_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(command_that_raises(ZeroDivisionError("oh"), tmp_path / "missing")) == 1

    assert "--verbose shows the details" in capsys.readouterr().err


def test_breaking_a_rule_of_the_wire_ourselves_is_a_bug() -> None:
    assert explain_error(LocalProtocolError("too long")).bug is not None


def test_a_bug_beside_expected_errors_is_not_hidden_by_them() -> None:
    bug = ZeroDivisionError("oh")
    group = ExceptionGroup("", [StoreError("a"), bug])

    ending = explain_error(group)

    assert ending.bug is group
    assert "ZeroDivisionError" in ending.line


def test_an_error_out_of_a_nursery_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise StoreError("from a task")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)

    @click.command()
    def command() -> None:
        trio.run(main)

    assert end(command) == 1

    assert capsys.readouterr().err == "echo2-test: from a task\n"


Leaves = st.sampled_from(
    [StoreError("a"), ConfigError("b"), KeyboardInterrupt(), ValueError("c"), OSError(5, "d")]
)
Trees = st.recursive(
    Leaves, lambda inner: st.lists(inner, min_size=1).map(lambda x: BaseExceptionGroup("g", x))
)


@given(Trees)
def test_whatever_is_raised_has_an_ending_with_a_status_that_is_not_0(exc: BaseException) -> None:
    ending = explain_error(exc)

    assert ending.status in {1, 2, 130}
    assert ending.line


def test_a_closed_pipe_is_no_error_worth_a_word() -> None:
    script = (
        "import click\nfrom echo2swarm.text.cli_errors import run_cli\n"
        "@click.command()\ndef main():\n    for i in range(100_000): click.echo(i)\n"
        "run_cli(main, program='p')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        status = process.wait()

    assert errors == b""
    assert status == 1
