"""Looking at processes, any of which may end while it is looked at."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only its exit status."""
    return _fields_of(pid)[:1] not in ([], ["Z"])


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, and its parent has not asked how."""
    return _fields_of(pid)[:1] == ["Z"]


def parent_of(pid: int) -> int | None:
    """Return a process's parent; None if it has ended."""
    fields = _fields_of(pid)
    return int(fields[1]) if fields else None


def children_of(pid: int) -> list[int]:
    """Return what a process, or any of its threads, has started."""
    found: list[int] = []
    for thread in _entries(Path(f"/proc/{pid}/task")):
        found += map(int, _text(thread / "children").split())
    return found


def command_line(pid: int) -> str:
    """Return how a process was called; empty if it has ended."""
    return _text(Path(f"/proc/{pid}/cmdline"))


def _fields_of(pid: int) -> list[str]:
    """Return what is behind the name, which may hold anything: state, parent, process group."""
    return _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
