"""Text in whatever locale a program is started: paths and names are UTF-8, and output never fails.

Where the system says ASCII or Latin-1 (an old locale, or ``PYTHONUTF8=0``), Python would read
paths in that, and could not write them into files that are UTF-8.
"""

import locale
import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from typing import Final

from echo2swarm.system.errors import UsageError

_UTF8_MODE: Final = "PYTHONUTF8"
_MAX_SHOWN_CHARS: Final = 200


def use_utf8() -> None:
    """Have this process use UTF-8 for all text; it starts itself anew if it does not yet.

    Children inherit that.
    """
    encodings = {sys.getfilesystemencoding().lower(), locale.getencoding().lower()}
    is_utf8 = sys.flags.utf8_mode or encodings <= {"utf-8", "utf8"}
    if not is_utf8 and os.environ.get(_UTF8_MODE) != "1":
        os.environ[_UTF8_MODE] = "1"
        arguments = sys.orig_argv
        os.execv(sys.executable, [arguments[0], "-X", "utf8", *arguments[1:]])  # noqa: S606


def escape_what_streams_lack() -> None:
    """Let output show characters that its encoding lacks by their escapes, and never fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def check_arguments(arguments: Iterable[str]) -> None:
    """Do nothing if all of a command line is text.

    Raises:
        UsageError: some of it, or the name of the current folder, is not UTF-8: it could be
            written into no file of ours.
    """
    for argument in arguments:
        if not is_text(argument):
            shown = os.fsencode(argument).decode("utf-8", "backslashreplace")[:_MAX_SHOWN_CHARS]
            raise UsageError(
                f'"{shown}" is not text in UTF-8; rename it, or link it by such a name'
            )
    try:
        here = os.getcwd()
    except OSError:
        return  # whoever needs it says so
    if not is_text(here):
        raise UsageError("the path of the current folder is not text in UTF-8; work in another one")


def is_text(text: str) -> bool:
    """Whether a text can be written in UTF-8: one with bytes that were none can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
