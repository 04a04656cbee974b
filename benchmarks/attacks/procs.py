"""Memory, processor time and disk of a swarm's processes, by what they are."""

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

ROLES: Final = {
    "learner.": "learner",
    "node.": "node",
    "benchmarks.attacks": "attacker",
}
"""By how the name of the module begins that a process runs; children are counted with parents."""
STORES: Final = frozenset({"weights", "snapshots", "payloads", "trash"})
"""Folders of learner and nodes in which versions come and go."""
STATUS: Final = "status.json"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

URGENT_NICE: Final = -15


def hurry() -> None:
    """Let this process and all that it starts go before others, as far as the system allows it.

    Linux may weigh sessions instead of processes: then it is for all of this session.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, URGENT_NICE)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(URGENT_NICE))


def roles_of(pids: Iterable[int]) -> dict[int, str]:
    """Return what each process is; those that are nothing we know, or have ended, are left out."""
    found = {}
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
        role = next((role for start, role in ROLES.items() if module.startswith(start)), None)
        if role is not None:
            found[pid] = role
    return found


def memory_bytes(roles: dict[int, str]) -> dict[str, int]:
    """Return the resident memory of each role's processes."""
    found: dict[str, int] = defaultdict(int)
    for pid, role in roles.items():
        try:
            found[role] += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            continue
    return dict(found)


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has had; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def machine_cpu_s() -> float:
    """Return the processor seconds that this machine has spent on anything at all."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def disk_bytes(folders: Iterable[Path]) -> tuple[int, int]:
    """Return how much the files in these folders hold: stores of weights, and all others.

    Versions come and go in a store, and the status is written anew each time: their bytes are
    bounded. Other files only grow. SQLite's log of what it has not put in its place yet is bounded,
    too, and belongs to neither.
    """
    stores = others = 0
    for folder in folders:
        for where, _, names in os.walk(folder):
            is_store = not STORES.isdisjoint(Path(where).parts)
            for name in names:
                if name.endswith(("-wal", "-shm")):
                    continue
                try:
                    size = os.lstat(os.path.join(where, name)).st_size
                except OSError:
                    continue
                if is_store or name == STATUS:
                    stores += size
                else:
                    others += size
    return stores, others
