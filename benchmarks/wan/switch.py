"""The backend in user space: one TAP device a host, and ``switch.c`` between them."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.wan.links import MTU_BYTES, QUEUE_S, Link, mac_of, switch_settings
from benchmarks.wan.tools import WanError, check_switch_possible, run

SOURCE: Final = Path(__file__).with_name("switch.c")
STOP_S: Final = 5.0


class SwitchWires:
    """Joins namespaces by a process that reads, delays and writes every frame."""

    def __init__(self, namespaces: Sequence[str], device: str) -> None:
        self._namespaces = namespaces
        self._device = device
        self._process: subprocess.Popen[str] | None = None

    def lay(self, links: Sequence[Link]) -> None:
        """Make the device of each host.

        Raises:
            WanError: there is no compiler, or the switch does not start.
        """
        program = build(check_switch_possible())
        # Segments that travel together would be lost together.
        cut = "cut" if any(link.loss for link in links) else "whole"
        self._process = subprocess.Popen(
            [program, f"{QUEUE_S * 1e9:.0f}", cut],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent; and see `hurry` there
        )
        for namespace, link in zip(self._namespaces, links, strict=True):
            self._tell(f"host /run/netns/{namespace} {self._device} {switch_settings(link)}")
        self._tell("start")
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        if self._process.stdout.readline().strip() != "ready":
            _, why = self._process.communicate()
            raise WanError(f"the switch did not start: {why.strip()}")
        for host, namespace in enumerate(self._namespaces):
            attributes = ["address", mac_of(host), "mtu", str(MTU_BYTES)]
            run(["ip", "-n", namespace, "link", "set", self._device, *attributes])

    def introduce(self, addresses: Sequence[str]) -> None:
        """Tell each host the others' hardware addresses: the switch carries no broadcast."""
        for host, namespace in enumerate(self._namespaces):
            lines = [
                f"neigh replace {address} lladdr {mac_of(other)} dev {self._device}\n"
                for other, address in enumerate(addresses)
                if other != host
            ]
            run(["ip", "-n", namespace, "-batch", "-"], stdin="".join(lines))

    def change(self, host: int, link: Link) -> None:
        """Make a host's link another one while traffic flows."""
        self._tell(f"set {host} {switch_settings(link)}")

    def close(self) -> None:
        """End the switch."""
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=STOP_S)  # closes its input, which ends it
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _tell(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None  # noqa: S101, PT018
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            _, why = self._process.communicate()
            raise WanError(f"the switch ended: {why.strip()}") from None


def build(compiler: str) -> Path:
    """Return the switch's program, compiled if this version of it has not been yet.

    Raises:
        WanError: it does not compile.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "echo2swarm"
    program = folder / f"wan-switch-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    if program.exists():
        return program
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "switch"
            run([compiler, "-O2", "-Wall", "-Wextra", "-o", str(made), str(SOURCE)])
            made.replace(program)
    except OSError as exc:
        raise WanError(f"cannot keep the compiled switch in {folder}: {exc}") from exc
    return program
