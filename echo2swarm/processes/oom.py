"""Whether the system has killed processes for want of memory."""

from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/proc/self/cgroup")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_VMSTAT: Final = Path("/proc/vmstat")
_KEY: Final = "oom_kill"


def num_oom_kills() -> int:
    """Return how many processes the system has killed so far, here or on the whole machine.

    Inside of a container the machine's count can be missing; that of our control group is not.
    """
    return sum(_count_in(path) for path in (_VMSTAT, _own_group() / "memory.events"))


def _own_group() -> Path:
    try:
        lines = _CGROUP.read_text().splitlines()
    except OSError:
        return _CGROUPS
    # The second version's line is the one without a controller.
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return _CGROUPS / own.lstrip("/")


def _count_in(path: Path) -> int:
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return sum(int(row[1]) for row in rows if len(row) > 1 and row[0] == _KEY)
    except (OSError, ValueError):
        return 0
