"""Where in the user's own files an item, or an error, comes from: for messages."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Locates(Protocol):
    """A task that knows where its prompts come from."""

    def where(self, index: int, error: BaseException | None) -> str:
        """Return what prompt number ``index`` is made from, as in ``items.jsonl, line 7``.

        Args:
            index: the prompt's number.
            error: what came of making it, if it failed.

        Empty if that is not known.
        """
        ...


def where_of(task: object, index: int, error: BaseException | None) -> str:
    """Return where a prompt comes from, if its task knows."""
    return task.where(index, error) if isinstance(task, Locates) else ""


def line_of(error: BaseException, function: Callable[..., Any]) -> str:
    """Return the line in the file of ``function`` that an error comes from; else its first."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    line = code.co_firstlineno
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == code.co_filename and frame.lineno is not None:
            line = frame.lineno
    return f"{Path(code.co_filename).name}, line {line}"
