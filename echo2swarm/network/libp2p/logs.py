"""Keeps what the library logs away from users: it reports ordinary churn with tracebacks."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import libp2p
import structlog

_ROOT_FOLDER = str(Path(libp2p.__file__).parent)
_log = structlog.get_logger()


class _Bridge(logging.Handler):
    """Turns the library's warnings into one-line debug events of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().partition("\n")[0]
        _log.debug("libp2p.message", source=record.name, text=text[:300])


class _NotLibp2p(logging.Filter):
    """Drops what the library logs to the root logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(_ROOT_FOLDER)


@contextmanager
def quiet() -> Iterator[None]:
    """While this is open, nothing of the library's log is printed.

    Some of its modules log to the root logger, where the first such call would also
    install a handler that prints: an empty handler there prevents it.
    """
    logger, root = logging.getLogger("libp2p"), logging.getLogger()
    bridge, nothing = _Bridge(logging.WARNING), logging.NullHandler()
    not_libp2p = _NotLibp2p()
    logger.addHandler(bridge)
    root.addHandler(nothing)
    root.addFilter(not_libp2p)
    try:
        yield
    finally:
        root.removeFilter(not_libp2p)
        root.removeHandler(nothing)
        logger.removeHandler(bridge)
