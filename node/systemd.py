"""The systemd user unit under which a node runs from login to logout, or from boot on.

A user unit: nobody needs root. The ticket is kept out of it, in a file that only the user
may read: units are readable, and shown in logs.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from echo2swarm.system.errors import StoreError, UsageError

TICKET_VARIABLE: Final = "ECHO2_TICKET"
_TIMEOUT_S: Final = 10.0
_UNIT: Final = """\
# Written by `echo2-node service install`; `echo2-node service uninstall` removes it.
[Unit]
Description=ECHO-2 swarm node {name}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=900
StartLimitBurst=5

[Service]
Type=exec
EnvironmentFile={environment}
ExecStart={command}
# The first SIGINT drains: what is begun is finished, the rest handed back.
KillMode=mixed
KillSignal=SIGINT
TimeoutStopSec=60
# 2 is a wrong option or ticket: another start would not help.
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2
Nice=10
NoNewPrivileges=yes
UMask=0077

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePaths:
    """Where a service's files are."""

    unit: Path
    environment: Path

    @property
    def unit_name(self) -> str:
        """What systemctl calls it."""
        return self.unit.name


def service_paths(name: str, *, config_home: Path) -> ServicePaths:
    """Return where the files of the service ``name`` are.

    Raises:
        UsageError: the name can't be part of a unit's.
    """
    if not name or not all(c.isascii() and (c.isalnum() or c in "_-") for c in name):
        raise UsageError(f"service name {name!r}: letters, digits, - and _ are allowed")
    stem = "echo2-node" if name == "default" else f"echo2-node-{name}"
    return ServicePaths(
        unit=config_home / "systemd" / "user" / f"{stem}.service",
        environment=config_home / "echo2swarm" / f"{stem}.env",
    )


def config_home() -> Path:
    """Return where this user's configuration is."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def own_command() -> list[str]:
    """Return how to run this program, wherever it is run from."""
    script = Path(sys.executable).with_name("echo2-node")
    if script.exists():
        return [str(script)]
    # Without -P, a folder called node where it is started would be run instead.
    return [sys.executable, "-P", "-m", "node.cli"]


def unit_text(
    name: str, paths: ServicePaths, *, command: Sequence[str], options: Sequence[str]
) -> str:
    """Return the unit.

    Args:
        name: of the service.
        paths: where its files are.
        command: runs ``echo2-node``.
        options: those of ``join``.
    """
    words = [*command, "join", *options]
    return _UNIT.format(
        name=name,
        environment=str(paths.environment).replace("%", "%%"),
        command=" ".join(_quoted(word) for word in words),
    )


def environment_text(ticket: str) -> str:
    """Return the file that holds the ticket."""
    return f"{TICKET_VARIABLE}={ticket}\n"


def install_unit(paths: ServicePaths, *, unit: str, ticket: str) -> None:
    """Write both files; what was there is replaced.

    Raises:
        StoreError: they can't be written.
    """
    try:
        _write(paths.environment, environment_text(ticket), mode=0o600)
        _write(paths.unit, unit, mode=0o644)
    except OSError as exc:
        raise StoreError(f"can't write {exc.filename or paths.unit}: {exc.strerror}") from exc
    reload_units()


def uninstall_unit(paths: ServicePaths) -> list[Path]:
    """Stop the service, and remove its files; returns those that were there.

    Raises:
        StoreError: they can't be removed.
    """
    if paths.unit.exists():
        _systemctl("disable", "--now", paths.unit_name)
    removed = [path for path in (paths.unit, paths.environment) if path.exists()]
    try:
        for path in removed:
            path.unlink()
    except OSError as exc:
        raise StoreError(f"can't remove {exc.filename}: {exc.strerror}") from exc
    reload_units()
    return removed


def reload_units() -> bool:
    """Have systemd look at its units again; returns whether it did."""
    return _systemctl("daemon-reload")


def _systemctl(*arguments: str) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            ["systemctl", "--user", *arguments],  # noqa: S607 - the user's own
            check=False,
            capture_output=True,
            timeout=_TIMEOUT_S + (60.0 if "--now" in arguments else 0.0),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _write(path: Path, text: str, *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    draft.replace(path)


def _quoted(word: str) -> str:
    """Return a word as systemd takes it for that word, whatever is in it."""
    if "\n" in word or "\0" in word:
        raise UsageError(f"option {word!r} has a line break in it")
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if not plain or any(c in plain for c in " \t'\"\\;") else plain
