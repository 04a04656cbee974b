"""What the programs tell: log lines for people, JSON lines for programs.

Our own code logs through ``structlog.get_logger()``, with events named
``noun.verb``. Libraries log through :mod:`logging`, and are heard from WARNING
on. Both come out in one form. Nothing is set up on import:
:func:`configure_logging` is called once, by a program's entry point.
"""

import logging
import sys
import time
from collections.abc import Collection, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
from structlog.typing import Processor

from echo2swarm.system.jsonl import JsonLines, read_jsonl
from echo2swarm.system.log_budget import LogBudget

__all__ = ["JsonLines", "TextRenderer", "configure_logging", "events_to", "read_jsonl"]

_OURS: Final = "echo2"
"""The logger that all of structlog goes through; never shown."""

_NOISY_LOGGERS: Final = ("asyncio", "httpx", "httpcore", "matplotlib")
MAX_EVENTS_BYTES: Final = 64 * 1024 * 1024
_MAX_VALUE_CHARS: Final = 500
_EVENT_WIDTH: Final = 22

_RESET: Final = "\x1b[0m"
_DIM: Final = "\x1b[2m"
_BOLD: Final = "\x1b[1m"
_LEVEL_COLOURS: Final = {
    "debug": "\x1b[36m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31;1m",
}

EventDict = MutableMapping[str, Any]


class Terminal(Protocol):
    """What log lines are written to: any text stream is one."""

    def write(self, text: str, /) -> object:
        """Write lines."""
        ...

    def flush(self) -> None:
        """Show them."""
        ...

    def isatty(self) -> bool:
        """Whether somebody looks at it."""
        ...


def configure_logging(
    *,
    verbose: bool = False,
    quiet: bool = False,
    as_json: bool = False,
    stream: Terminal | None = None,
    details: Collection[str] = (),
) -> None:
    """Set up logging for this process; a second call replaces the first.

    Args:
        verbose: show debug messages, and tracebacks that libraries log.
        quiet: show warnings and errors only.
        as_json: one JSON object per line instead of text.
        details: events that only ``verbose`` shows, unless they are warnings; files of events have
            them all.
        stream: where lines go; standard error if None, so that standard output stays for results.
    """
    stream = sys.stderr if stream is None else stream
    render = _render_json if as_json else TextRenderer(colours=stream.isatty())
    handler = _StreamHandler(stream)
    handler.setFormatter(_formatter(render, foreign_tracebacks=verbose))
    if details and not verbose:
        handler.addFilter(partial(_is_shown, frozenset(details)))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _StreamHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_OURS).setLevel(logging.DEBUG)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    # Libraries' warnings are for developers; they go where their log messages go.
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            LogBudget(),
            _add_time,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        ),
        logger_factory=_our_logger,
        cache_logger_on_first_use=False,  # so that a second call reaches loggers already made
    )


@contextmanager
def events_to(path: Path) -> Iterator[None]:
    """For the length of the context, append every logged event to ``path`` as a JSON line.

    A file that has become long is put aside as ``NAME.1``, in the place of the one before.
    """
    with JsonLines(path, max_bytes=MAX_EVENTS_BYTES) as lines:
        handler = _EventHandler(lines)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)


def _is_shown(details: frozenset[str], record: logging.LogRecord) -> bool:
    """Whether a record is more than a detail."""
    is_detail = isinstance(record.msg, dict) and record.msg.get("event") in details
    return not is_detail or record.levelno >= logging.WARNING


def _our_logger(*_args: object) -> logging.Logger:
    return logging.getLogger(_OURS)


def _add_time(_logger: object, _method: str, event: EventDict) -> EventDict:
    event["unix_s"] = time.time()
    return event


def _foreign_time(_logger: object, _method: str, event: EventDict) -> EventDict:
    record = event["_record"]
    event["unix_s"] = record.created
    event["logger"] = record.name
    return event


def _drop_traceback(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Keep of a library's exception what it was, in the one line of its message."""
    exc_info = event.pop("exc_info", None)
    if isinstance(exc_info, tuple) and exc_info[1] is not None:
        event["error"] = f"{type(exc_info[1]).__name__}: {exc_info[1]}"
    return event


def _formatter(
    render: Processor, *, foreign_tracebacks: bool
) -> structlog.stdlib.ProcessorFormatter:
    foreign: list[Processor] = [structlog.processors.add_log_level, _foreign_time]
    if not foreign_tracebacks:
        foreign.append(_drop_traceback)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=foreign,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            render,
        ],
    )


def _render_json(_logger: object, _method: str, event: EventDict) -> str:
    return JsonLines.encode(_ordered(event)).decode().rstrip("\n")


def _ordered(event: EventDict) -> dict[str, Any]:
    first = {"unix_s": event.pop("unix_s", None), "level": event.pop("level", "info")}
    return {**first, "event": event.pop("event", ""), **event}


class TextRenderer:
    """``12:34:56 warning  rollout.refused  reason=stale peer=12D3Koo``, one line per event."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours

    def __call__(self, _logger: object, _method: str, event: EventDict) -> str:
        """Render one event; what a peer sent can't break out of its line."""
        at = datetime.fromtimestamp(event.pop("unix_s", 0.0), tz=UTC).astimezone()
        level = str(event.pop("level", "info"))
        name = _printable(str(event.pop("event", "")))
        traceback = event.pop("exception", None)
        parts = [
            self._in(_DIM, at.strftime("%H:%M:%S")),
            self._in(_LEVEL_COLOURS.get(level, ""), f"{level:<7}"),
            self._in(_BOLD, f"{name:<{_EVENT_WIDTH}}" if event else name),
            *(self._in(_DIM, f"{key}=") + _shown(value) for key, value in event.items()),
        ]
        line = " ".join(parts)
        return f"{line}\n{traceback}" if traceback else line

    def _in(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self._colours and style else text


def _printable(text: str) -> str:
    """Return ``text`` with everything that would move the cursor or end the line escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    text = str(value)
    if len(text) > _MAX_VALUE_CHARS:
        text = f"{text[:_MAX_VALUE_CHARS]}..."
    if not isinstance(value, str):
        return _printable(text)
    is_plain = bool(text) and text.isprintable() and not any(c in " \"'=" for c in text)
    return text if is_plain else repr(text)


class _StreamHandler(logging.StreamHandler[Terminal]):
    """The handler that :func:`configure_logging` put there, and may take away."""


class _EventHandler(logging.Handler):
    """Appends events to a file of JSON lines; if that fails, says so once and goes on."""

    def __init__(self, lines: JsonLines) -> None:
        super().__init__()
        self._lines = lines
        self._has_failed = False
        self.setFormatter(_formatter(_render_json, foreign_tracebacks=True))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.write_raw(self.format(record).encode())
        except (OSError, ValueError, OverflowError) as exc:
            # The disk is full, or JSON can't hold a value. Losing the log must not lose the run.
            if not self._has_failed:
                self._has_failed = True
                structlog.get_logger().error("events.failed", error=str(exc))
        else:
            self._has_failed = False
