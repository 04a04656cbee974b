"""The processes of a run, each on a host of the emulated WAN."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from benchmarks.broadcast.wire import Record, records
from benchmarks.wan import Wan

URGENT_NICE: Final = -10
"""About ten times the share of processes of the usual niceness."""


class ChildError(Exception):
    """A process died or fell silent; the message says where its log is."""


class Child:
    """One process; it says JSON lines, and is told JSON lines."""

    def __init__(self, name: str, log: Path, *, is_urgent: bool = False) -> None:
        self.name = name
        self._is_urgent = is_urgent
        self.said: list[Record] = []
        """All it has said so far."""
        self._log = log
        self._changed = trio.Event()
        self._process: trio.Process | None = None
        self._is_over = False

    async def run(
        self,
        wan: Wan,
        host: int,
        arguments: Sequence[str],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run ``python ARGUMENTS`` on a host, and listen to it until it ends."""
        with self._log.open("ab") as log:
            process = await trio.lowlevel.open_process(
                wan.command(host, [sys.executable, *arguments]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Its own share of the processors, as on a machine of its own; and Ctrl-C is
                # for the parent, which then cleans up.
                start_new_session=True,
            )
        self._process = process
        if self._is_urgent:
            _hurry(process.pid)
        assert process.stdout is not None  # noqa: S101 - it was asked for
        try:
            task_status.started()
            async for record in records(process.stdout):
                self.said.append(record)
                self._ring()
            await process.wait()
        finally:
            self._is_over = True
            self._ring()
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                await process.stdout.aclose()

    async def tell(self, what: str, **details: object) -> None:
        """Tell it what to do.

        Raises:
            ChildError: it is gone.
        """
        assert self._process is not None  # noqa: S101 - it runs
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        line = msgspec.json.encode({"do": what, **details}) + b"\n"
        try:
            await self._process.stdin.send_all(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise self._failure("is gone") from None

    async def hear(self, event: str, *, within_s: float) -> Record:
        """Return the first record of ``event``, as soon as it has been said.

        Raises:
            ChildError: it ended without, or took too long.
        """
        with trio.move_on_after(within_s):
            while True:
                changed = self._changed
                if (record := self.first(event)) is not None:
                    return record
                if self._is_over:
                    raise self._failure(f"ended without {event!r}")
                await changed.wait()
        raise self._failure(f"did not say {event!r} within {within_s:g} s")

    def first(self, event: str) -> Record | None:
        """Return the first record of ``event`` if there is one."""
        return next((r for r in self.said if r["event"] == event), None)

    def last(self, figure: str) -> Any:  # noqa: ANN401 - it is JSON
        """Return the last value said of ``figure``; 0 if none was."""
        return next((r[figure] for r in reversed(self.said) if figure in r), 0)

    def kill(self) -> None:
        """End it as a crash or a power cut would."""
        assert self._process is not None  # noqa: S101 - it runs
        self._process.kill()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _failure(self, what: str) -> ChildError:
        tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
        return ChildError(f"{self.name} {what}; the end of its log:\n" + "\n".join(tail))


def _hurry(pid: int) -> None:
    """Let a process go before others; Linux may weigh its session instead of itself."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, URGENT_NICE)
        Path(f"/proc/{pid}/autogroup").write_text(str(URGENT_NICE))
