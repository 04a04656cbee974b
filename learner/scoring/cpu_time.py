"""How much processor time another process has used, where the system says."""

import os
from pathlib import Path


def cpu_s_of(pid: int) -> float | None:
    """Return the seconds that a process has computed, all its threads; None if that is unknown."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
        # The name, in brackets, may contain anything.
        fields = line.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
