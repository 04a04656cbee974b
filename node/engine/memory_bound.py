"""Keeps the building of a model within what its weights need: it is described by a stranger.

On CPUs the system refuses more (``RLIMIT_DATA``, which mapped files don't count for). CUDA reserves
address space far beyond that, so there, and for what the limit misses, the process is watched, and
ends.
"""

import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SLACK_BYTES: Final = 1 << 30
"""For libraries, which are loaded at their first use, and copies on the way."""
_BYTES_PER_THREAD: Final = 16 << 20
_WATCH_S: Final = 0.1
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")
_RESIDENT, _DATA = 1, 5


def bound_of(weights_bytes: int) -> int:
    """Return how many bytes a process may take beyond what it has, to load such weights."""
    return 2 * weights_bytes + SLACK_BYTES + (os.cpu_count() or 1) * _BYTES_PER_THREAD


@contextmanager
def bounded_memory(num_bytes: int, *, on_cpu: bool) -> Iterator[None]:
    """Let this process take at most ``num_bytes`` more within the context.

    Raises:
        MemoryError: it tried to take more; not everything that can't be had ends so.
    """
    if not _STATM.exists():  # not Linux
        yield
        return
    done = threading.Event()
    most = _pages(_RESIDENT) * _PAGE_BYTES + num_bytes
    watch = threading.Thread(target=_watch, args=(done, most, num_bytes), daemon=True)
    watch.start()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        if on_cpu:
            limit = _pages(_DATA) * _PAGE_BYTES + num_bytes
            known = [value for value in before if value != resource.RLIM_INFINITY]
            resource.setrlimit(resource.RLIMIT_DATA, (min([limit, *known]), before[1]))
        try:
            yield
        except (MemoryError, RuntimeError) as exc:
            if isinstance(exc, MemoryError) or "can't allocate memory" in str(exc):
                raise MemoryError(said(num_bytes)) from exc
            raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        done.set()
        watch.join()


def said(num_bytes: int) -> str:
    """Return what is wrong with a model that took more."""
    return (
        f"the model wanted more than {num_bytes >> 20} MiB of memory to be built, which is more "
        "than its weights need: its config is not believed"
    )


def _pages(column: int) -> int:
    return int(_STATM.read_text().split()[column])


def _watch(done: threading.Event, most_bytes: int, num_bytes: int) -> None:
    while not done.wait(_WATCH_S):
        if _pages(_RESIDENT) * _PAGE_BYTES > most_bytes:
            print(said(num_bytes), file=sys.stderr, flush=True)  # noqa: T201 - the child's log
            os._exit(1)
