"""The port to what a machine tells of its GPU; and which of its users are not the node.

One adapter: :mod:`node.owner.nvml`, for NVIDIA. A machine without one has no monitor, and
nothing else depends on there being any.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from echo2swarm.system.errors import SwarmError


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


class SeveralGpus:
    """Several GPUs as one: what is done to one of them is done to all."""

    def __init__(self, monitors: Sequence[GpuMonitor]) -> None:
        self._monitors = monitors

    def read(self) -> GpuReading:
        """Return how they are: memory and power added up, each process once.

        Raises:
            GpuUnreadableError: one of them can't be told now.
        """
        readings = [monitor.read() for monitor in self._monitors]
        names = Counter(reading.name for reading in readings)
        return GpuReading(
            name=" and ".join(
                f"{num} x {name}" if num > 1 else name for name, num in names.items()
            ),
            driver=readings[0].driver,
            total_bytes=sum(reading.total_bytes for reading in readings),
            used_bytes=sum(reading.used_bytes for reading in readings),
            uses=_merged(use for reading in readings for use in reading.uses),
            power_w=_total(reading.power_w for reading in readings),
            power_cap_w=_total(reading.power_cap_w for reading in readings),
        )

    def cap_power(self, watts: float) -> float:
        """Ask for a power cap of each, and return the lowest that was set.

        Raises:
            GpuUnreadableError: the driver refuses for one of them.
        """
        return min(monitor.cap_power(watts) for monitor in self._monitors)


def _merged(uses: Iterable[GpuUse]) -> tuple[GpuUse, ...]:
    by_pid: dict[int, GpuUse] = {}
    for use in uses:
        known = by_pid.setdefault(use.pid, use)
        if known is not use:
            shares = [s for s in (known.time_share, use.time_share) if s is not None]
            by_pid[use.pid] = replace(
                known,
                memory_bytes=known.memory_bytes + use.memory_bytes,
                time_share=max(shares, default=None),
            )
    return tuple(by_pid[pid] for pid in sorted(by_pid))


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


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
