"""The port to what a machine tells of its GPU; and which of its users are not the node.

One adapter: :mod:`node.owner.nvml`, for NVIDIA. A machine without one has no monitor, and
nothing else depends on there being any.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from echo2swarm.errors import SwarmError


class GpuUnreadableError(SwarmError):
    """The driver does not tell, or has no such GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One process on a GPU."""

    pid: int
    name: str
    memory_bytes: int
    """0 where the driver does not tell."""
    time_share: float | None = None
    """Of the GPU's time, lately; None where the driver does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU, now."""

    name: str
    driver: str
    total_bytes: int
    used_bytes: int
    uses: tuple[GpuUse, ...]
    power_w: float | None = None
    power_cap_w: float | None = None


class GpuMonitor(Protocol):
    """What is asked of a GPU. Calls may take some milliseconds: not on the event loop."""

    def read(self) -> GpuReading:
        """Return how it is.

        Raises:
            GpuUnreadableError: it can't be told now.
        """
        ...

    def cap_power(self, watts: float) -> float:
        """Ask for a power cap, and return what was set.

        Raises:
            GpuUnreadableError: the driver refuses: out of range, or not without root.
        """
        ...


ParentOf = Callable[[int], int | None]
"""Returns a process's parent; None if it is gone, or there is none."""


def others_in(uses: Iterable[GpuUse], *, own_pid: int, parent_of: ParentOf) -> tuple[GpuUse, ...]:
    """Return the uses that are not by the node's own process or what it has started."""
    return tuple(use for use in uses if not _is_under(use.pid, own_pid, parent_of))


def parent_of(pid: int) -> int | None:
    """Return a process's parent, as Linux tells."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in brackets, may hold anything.
    parent = int(status.rpartition(")")[2].split()[1])
    return parent or None


def name_of(pid: int) -> str:
    """Return what a process is called."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() or f"process {pid}"
    except OSError:
        return f"process {pid}"


def _is_under(pid: int, own_pid: int, parent_of: ParentOf) -> bool:
    seen: set[int] = set()
    current: int | None = pid
    while current is not None and current not in seen:
        if current == own_pid:
            return True
        seen.add(current)
        current = parent_of(current)
    return False
