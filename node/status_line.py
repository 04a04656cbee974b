"""Tells the contributor what the node waits for: on one line of the screen, or now and then.

On a terminal, the last line is always what the node is doing; in a file, long waits are told
of every few seconds, so that nobody has to guess whether anything happens.
"""

import sys
from collections.abc import Callable
from io import TextIOBase
from typing import Final, NoReturn, TextIO, cast

import structlog
import trio

from echo2swarm.text.format import bar, format_bytes, format_seconds, printable
from node.control.messages import NodePhase, NodeSnapshot

LOOK_S: Final = 0.5
FIRST_TELL_S: Final = 3.0
TELL_S: Final = 10.0
_WAITS: Final = frozenset(
    {NodePhase.JOINING, NodePhase.WAITING, NodePhase.DOWNLOADING, NodePhase.LOADING}
)
_CLEAR: Final = "\r\x1b[2K"
_BAR_WIDTH: Final = 20

log = structlog.get_logger()


class StatusLine(TextIOBase):
    """A terminal whose last line shows a status; what is logged goes above it."""

    def __init__(self, terminal: TextIO, *, width: Callable[[], int]) -> None:
        self._terminal = terminal
        self._width = width
        self._status = ""

    def write(self, text: str) -> int:
        """Write lines above the status."""
        self._terminal.write(_CLEAR + text if self._status else text)
        if text.endswith("\n"):
            self._terminal.write(self._status)
        return len(text)

    def flush(self) -> None:
        """Show what was written."""
        self._terminal.flush()

    def isatty(self) -> bool:
        """Return True: it is one."""
        return True

    def show(self, status: str) -> None:
        """Show another status; an empty one leaves the line free."""
        text = printable(status, max_chars=max(10, self._width() - 1)) if status else ""
        if text == self._status:
            return
        self._terminal.write(_CLEAR + text)
        self._terminal.flush()
        self._status = text


class StatusReporter:
    """Tells of one node."""

    def __init__(
        self, snapshot: Callable[[float], NodeSnapshot], *, line: StatusLine | None = None
    ) -> None:
        self._snapshot = snapshot
        self._line = line
        self._phase: NodePhase | None = None
        self._since_s = 0.0
        self._tell_at_s = 0.0

    async def run(self) -> NoReturn:
        """Tell until cancelled."""
        try:
            while True:
                self._look(self._snapshot(trio.current_time()), trio.current_time())
                await trio.sleep(LOOK_S)
        finally:
            if self._line is not None:
                self._line.show("")

    def _look(self, seen: NodeSnapshot, now_s: float) -> None:
        if seen.phase is not self._phase:
            self._phase, self._since_s = seen.phase, now_s
            self._tell_at_s = now_s + FIRST_TELL_S
        if self._line is not None:
            self._line.show(status_text(seen, waited_s=now_s - self._since_s))
        elif seen.phase in _WAITS and now_s >= self._tell_at_s:
            self._tell_at_s = now_s + TELL_S
            self._tell(seen, now_s - self._since_s)

    def _tell(self, seen: NodeSnapshot, waited_s: float) -> None:
        download = seen.download
        if seen.phase is NodePhase.DOWNLOADING and download is not None:
            log.info(
                "version.downloading",
                version=download.version,
                have=f"{format_bytes(download.held_bytes)} of {format_bytes(download.total_bytes)}",
                rate=f"{format_bytes(download.bytes_per_s)}/s",
                eta=format_seconds(download.eta_s),
            )
        else:
            log.info("node.waiting", doing=seen.doing, for_s=round(waited_s))


def status_text(seen: NodeSnapshot, *, waited_s: float) -> str:
    """Return what a node is doing on one line."""
    text = seen.doing
    if seen.phase is NodePhase.DOWNLOADING and seen.download is not None:
        share = seen.download.held_bytes / max(1, seen.download.total_bytes)
        text = f"{bar(share, width=_BAR_WIDTH)} {text}"
    elif seen.phase in _WAITS:
        text = f"{text}, {format_seconds(max(0.0, waited_s // 1))} so far"
    done = seen.contribution
    counts = f"{done.num_accepted} accepted" if done.num_accepted else ""
    refused = sum(done.refused.values())
    if refused:
        counts = f"{counts}, {refused} refused".removeprefix(", ")
    return f"{seen.phase.value}: {text}" + (f"  [{counts}]" if counts else "")


def status_line() -> StatusLine | None:
    """Return a status line on standard error; None if that is no terminal."""
    import shutil  # noqa: PLC0415 - not needed to answer --help

    if not sys.stderr.isatty():
        return None
    return StatusLine(cast("TextIO", sys.stderr), width=lambda: shutil.get_terminal_size()[0])
