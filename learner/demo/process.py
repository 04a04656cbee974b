"""One program of a swarm as a process, with its log in a file.

Each is in a process group of its own, so that Ctrl-C in a terminal reaches
only whoever started it, and that decides what becomes of the others.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from echo2swarm.processes.exits import wait_pid_gone
from echo2swarm.text.format import printable

TAG_VARIABLE: Final = "ECHO2_STARTED_BY"
"""Set for every process of a swarm, inherited by their children: how they are found again."""

_TAIL_BYTES: Final = 64 * 1024
_KILLED_S: Final = 10.0
"""For what was killed to be gone: a busy machine takes its time over this, too."""


class SwarmProcess:
    """A running or ended program."""

    def __init__(self, name: str, process: trio.Process, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    async def wait(self) -> int:
        """Return its exit status once it has ended."""
        return await self._process.wait()

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Do what ``kill -9`` does."""
        self._signal(signal.SIGKILL)

    def log_tail(self, num_lines: int = 20) -> list[str]:
        """Return the last lines of its log."""
        return tail(self.log_path, num_lines)

    def obituary(self) -> str:
        """Say how it ended, with its last words and where the others are."""
        words = next((line for line in reversed(self.log_tail()) if line.strip()), "nothing")
        return (
            f"{self.name} ended with status {self.exit_status} (its last line: "
            f"{printable(words, max_chars=300)}; its log: {self.log_path})"
        )

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            self._process.send_signal(number)


async def start_process(
    module: str,
    arguments: Sequence[str],
    *,
    name: str,
    log_path: Path,
    env: Mapping[str, str],
    cwd: Path | None = None,
    through: Sequence[str] = (),
) -> SwarmProcess:
    """Run ``python -m module arguments``; its output is appended to ``log_path``.

    Whoever calls this ends the process: see :func:`stop_processes`. ``through`` is a command that
    becomes the one behind it, such as ``taskset -c 0``.
    """
    with open(log_path, "ab") as log:  # noqa: ASYNC230 - a local file
        process = await trio.lowlevel.open_process(
            [*through, sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
            cwd=cwd,
            process_group=0,
        )
    return SwarmProcess(name, process, log_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExit:
    """How a group of processes came to its end."""

    killed: tuple[str, ...]
    """Names of those that did not end when asked."""
    num_orphans: int
    """Processes that others had started and left behind; killed too."""


async def stop_processes(
    processes: Sequence[SwarmProcess], *, tag: str, grace_s: float = 8.0
) -> GroupExit:
    """End all ``processes``, and whatever else carries ``tag``; nothing is left afterwards.

    They are interrupted once, to end their work, then once more, to stop at once, and are
    then killed. Not to be cancelled: it takes twice ``grace_s`` and a little.
    """
    with trio.CancelScope(shield=True):
        for _ in range(2):
            for process in processes:
                process.interrupt()
            await _wait_ended(processes, timeout_s=grace_s)
        stubborn = [p for p in processes if p.is_running]
        for process in stubborn:
            process.kill()
        await _wait_ended(processes, timeout_s=_KILLED_S)
        # A child ends by itself when its parent is gone, but may be in a long computation.
        orphans = await _wait_untagged(tag, timeout_s=min(4.0, grace_s))
        for pid in orphans:
            _kill(pid)
        await _wait_untagged(tag, timeout_s=_KILLED_S)
    return GroupExit(killed=tuple(p.name for p in stubborn), num_orphans=len(orphans))


def tagged_pids(tag: str) -> list[int]:
    """Return the processes that inherited ``tag``, without this one.

    Needs ``/proc``; elsewhere none is found.
    """
    needle = f"{TAG_VARIABLE}={tag}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            # A zombie has an empty environment: it is gone but for its exit status.
            is_ours = pid != os.getpid() and needle in (folder / "environ").read_bytes().split(
                b"\0"
            )
        except OSError:
            continue  # another user's, or just ended
        if is_ours:
            found.append(pid)
    return found


def tail(path: Path, num_lines: int) -> list[str]:
    """Return the last lines of a text file; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return []


async def _wait_ended(processes: Sequence[SwarmProcess], *, timeout_s: float) -> None:
    with trio.move_on_after(timeout_s):
        for process in processes:
            await process.wait()


async def _wait_untagged(tag: str, *, timeout_s: float) -> list[int]:
    """Return those that are still there after ``timeout_s``."""
    with trio.move_on_after(timeout_s):
        while pids := tagged_pids(tag):
            await wait_pid_gone(pids[0])
    return tagged_pids(tag)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
