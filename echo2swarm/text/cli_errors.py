"""The rim of the command-line programs: every error becomes one line and an exit status.

========  ==========================================================
status    meaning
========  ==========================================================
0         done
1         failed: the line says what, where and what to do
2         called wrongly: a bad option, ticket or configuration
130       interrupted by Ctrl-C
========  ==========================================================

Imports little, since ``--help`` passes through here.
"""

import errno
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import click

from echo2swarm.system.errors import SwarmError, UsageError
from echo2swarm.system.locales import check_arguments, escape_what_streams_lack, use_utf8
from protocols.errors import LocalProtocolError, ProtocolError

FAILURE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

_MAX_LINE_CHARS: Final = 2000

_ADVICE: Final = {
    errno.ENOSPC: "no space left on the disk; free some, then start again",
    errno.EDQUOT: "the disk quota is used up; free some space, then start again",
    errno.EFBIG: "the file would become larger than the system allows",
    errno.EADDRINUSE: "the address is in use; stop the program that listens there, "
    "or choose another port",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}


@dataclass(kw_only=True)
class error_boundary:
    """What a command tells the rim about itself while it runs; click passes it as ``obj``."""

    verbose: bool = False
    """Show the traceback of an unexpected error."""
    crash_folder: Path | None = None
    """Where the traceback of an unexpected error is kept, once a folder is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExit:
    """How a program ends."""

    status: int
    line: str
    """For standard error; empty if there is nothing to say."""
    bug: BaseException | None = None
    """The error nobody expected, if that is what it was."""


def run_cli(
    command: click.Command, *, program: str, arguments: Sequence[str] | None = None
) -> NoReturn:
    """Run a click command and end the process with the right status.

    Args:
        command: may use ``@click.pass_obj`` to get the :class:`error_boundary`.
        program: its name, which starts every line.
        arguments: those of the process if None.
    """
    if arguments is None:
        use_utf8()
    escape_what_streams_lack()
    rim = error_boundary()
    try:
        check_arguments(sys.argv[1:] if arguments is None else arguments)
        result = command.main(
            None if arguments is None else list(arguments),
            prog_name=program,
            standalone_mode=False,
            obj=rim,
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as exc:
        exc.show()
        sys.exit(USAGE)
    except BaseException as exc:  # this is the rim
        sys.exit(_end(explain_error(exc), program, rim))
    sys.exit(result if isinstance(result, int) else 0)


def explain_error(exc: BaseException) -> ProgramExit:
    """Decide how a program that ended with ``exc`` tells it."""
    endings = [_explain_one(leaf) for leaf in _leaves(exc)]
    for ending in endings:
        if ending.bug is not None:
            return ProgramExit(status=FAILURE, line=ending.line, bug=exc)
    # Whoever pressed Ctrl-C knows why it ends; what fails on the way down is noise.
    worst = next((e for e in endings if e.status == INTERRUPTED), endings[0])
    others = {e.line for e in endings} - {worst.line}
    if worst.status == INTERRUPTED or not others:
        return worst
    return ProgramExit(status=worst.status, line=f"{worst.line} (and {len(others)} more)")


def _leaves(exc: BaseException) -> list[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for inner in exc.exceptions for leaf in _leaves(inner)]
    return [exc]


def _explain_one(exc: BaseException) -> ProgramExit:  # noqa: PLR0911  # a table
    match exc:
        case KeyboardInterrupt() | click.Abort():
            return ProgramExit(status=INTERRUPTED, line="interrupted")
        case SystemExit():
            status = exc.code if isinstance(exc.code, int) else FAILURE if exc.code else 0
            return ProgramExit(status=status, line=exc.code if isinstance(exc.code, str) else "")
        case click.exceptions.Exit():
            return ProgramExit(status=exc.exit_code, line="")
        case click.UsageError():
            where = f" (see {exc.ctx.command_path} --help)" if exc.ctx else ""
            return ProgramExit(status=USAGE, line=exc.format_message().rstrip(".") + where)
        case click.ClickException():
            return ProgramExit(status=exc.exit_code, line=exc.format_message())
        case UsageError():
            return ProgramExit(status=USAGE, line=str(exc))
        case LocalProtocolError():  # a rule of the wire broken by ourselves
            return _bug(exc)
        case SwarmError() | ProtocolError():
            return ProgramExit(status=FAILURE, line=str(exc))
        case BrokenPipeError():  # as in `swarm status | head`
            return ProgramExit(status=FAILURE, line="")
        case OSError():
            return ProgramExit(status=FAILURE, line=_explain_os_error(exc))
        case _:
            return _bug(exc)


def _explain_os_error(exc: OSError) -> str:
    what = _ADVICE.get(exc.errno or 0) or exc.strerror or str(exc) or type(exc).__name__
    where = os.fsdecode(exc.filename) if isinstance(exc.filename, str | bytes) else ""
    if exc.errno == errno.EADDRINUSE and not where:
        where = _address_in(str(exc))
    return f"{where}: {what}" if where else what


def _address_in(text: str) -> str:
    """Return the address of an error like ``... bind on address ('0.0.0.0', 4150): ...``."""
    _, found, rest = text.partition("address (")
    inside, closed, _ = rest.partition(")")
    return inside.replace("'", "").replace(", ", ":") if found and closed else ""


def _bug(exc: BaseException) -> ProgramExit:
    return ProgramExit(status=FAILURE, line=f"{type(exc).__name__}: {exc}", bug=exc)


def _end(ending: ProgramExit, program: str, rim: error_boundary) -> int:
    line = " ".join(ending.line.split())[:_MAX_LINE_CHARS]
    if ending.bug is not None:
        line = f"{line} (this is a bug; {_keep_traceback(ending.bug, rim)})"
    if line:
        click.echo(f"{program}: {line}", err=True)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ending.status


def _keep_traceback(exc: BaseException, rim: error_boundary) -> str:
    """Write the traceback where it can be found, and return the words that say where."""
    import traceback  # noqa: PLC0415  # not needed to answer --help

    text = "".join(traceback.format_exception(exc))
    if rim.verbose:
        click.echo(text, err=True)
        return "its traceback is above"
    if rim.crash_folder is None:
        return "--verbose shows the details"
    path = rim.crash_folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return "--verbose shows the details"
    return f"details in {path}"
