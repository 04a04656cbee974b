"""The commands the emulator is made of, and what to do if they are not there."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

COMMAND_S: Final = 20.0


class WanError(Exception):
    """No emulated WAN can be had here; the message says why, and what to do."""


def run(command: Sequence[str], *, stdin: str | None = None) -> str:
    """Run a command and return what it said.

    Raises:
        WanError: it failed.
    """
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=COMMAND_S
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise WanError(f"cannot run {command[0]}: {exc}") from exc
    if done.returncode:
        reason = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise WanError(f"{' '.join(command)}: {reason}")
    return done.stdout


def check_possible() -> None:
    """Check what every emulated WAN needs.

    Raises:
        WanError: it is not here.
    """
    if os.geteuid() != 0:
        raise WanError("an emulated WAN makes network namespaces, which takes root; run it as root")
    if shutil.which("ip") is None or shutil.which("tc") is None:
        raise WanError("an emulated WAN needs the commands ip and tc; install iproute2")


def check_switch_possible() -> str:
    """Check what links with delay, loss or NAT need; returns the C compiler.

    Raises:
        WanError: it is not here.
    """
    if not Path("/dev/net/tun").exists():
        raise WanError(
            "links with delay, loss or NAT need /dev/net/tun; run `modprobe tun`, or give the "
            "container that device"
        )
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise WanError("links with delay, loss or NAT need a C compiler; install gcc")
    return compiler
