"""A ticket as somebody types it: the line itself, or ``-`` and the line on standard input."""

import shlex
import sys
import time
from pathlib import Path
from typing import Final

from echo2swarm.system.errors import UsageError
from protocols.errors import RemoteProtocolError
from protocols.ticket import MAX_BYTES, PREFIX, Ticket, parse_ticket

TICKET_FILE: Final = "ticket.txt"
"""Where a learner writes it, in its run directory."""
_STDIN: Final = "-"


def read_ticket(text: str, *, command: str) -> Ticket:
    """Return the ticket that was typed; ``-`` reads it from standard input.

    Args:
        text: the argument.
        command: that it was typed after, for the message.

    Raises:
        UsageError: it is no ticket, cut short, or expired.
    """
    try:
        return parse_ticket(typed_ticket(text, command=command), now_unix_s=time.time())
    except RemoteProtocolError as exc:
        raise UsageError(str(exc)) from exc


def typed_ticket(text: str, *, command: str) -> str:
    """Return the line that was typed, which at least begins like a ticket.

    Args:
        text: the argument.
        command: that it was typed after, for the message: a file is a common mistake.

    Raises:
        UsageError: it is none; the message says how to read one from a file.
    """
    line = text.strip()
    if line == _STDIN:
        try:
            line = sys.stdin.readline(MAX_BYTES * 4).strip()
        except UnicodeDecodeError:
            raise UsageError("standard input is no text, and so no ticket") from None
        if not line:
            raise UsageError("standard input is empty, or begins with an empty line: no ticket")
    from_file = f"{command} - < "
    if not line:
        raise UsageError(f"the ticket is empty; to read it from a file: {from_file}FILE")
    if line.startswith(PREFIX):
        return line
    if text.strip() != _STDIN and is_folder(line):
        written = Path(line) / TICKET_FILE
        raise UsageError(
            f"{line} is a folder, not a ticket; "
            + (
                f"to read the ticket in it: {from_file}{shlex.quote(str(written))}"
                if written.is_file()
                else f"to read one from a file: {from_file}FILE"
            )
        )
    if text.strip() != _STDIN and "/" in line and not _is_path(line):
        raise UsageError(f"{line} is no ticket, and there is no such file or folder")
    if text.strip() != _STDIN and _is_path(line):
        raise UsageError(
            f"{line} is a path, not a ticket; to read the ticket in it: "
            f"{from_file}{shlex.quote(line)}"
        )
    raise UsageError(
        f"a ticket starts with {PREFIX!r}; this one does not. To read it from a file: "
        f"{from_file}FILE"
    )


def is_folder(text: str) -> bool:
    """Whether a folder was typed where a ticket is expected."""
    try:
        return bool(text.strip()) and Path(text).is_dir()
    except (OSError, ValueError):  # too long, or with characters that no path has
        return False


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long, or with characters that no path has
        return False
