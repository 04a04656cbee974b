"""Waits for processes to end."""

import os
import subprocess
from typing import Final

import trio

_HAS_PIDFD: Final = hasattr(os, "pidfd_open")


async def wait_exited(process: "subprocess.Popen[bytes]") -> None:
    """Return when a child process has ended, and its exit status is known."""
    if process.poll() is not None:
        return
    if not _HAS_PIDFD:
        await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        return
    await wait_pid_gone(process.pid)
    process.wait()  # It has ended: this takes its status, and no time.


async def wait_pid_gone(pid: int) -> None:
    """Return when the process ``pid`` has ended, whoever its parent is; Linux only."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
