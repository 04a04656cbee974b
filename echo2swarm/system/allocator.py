"""What the C library's allocator is asked for, so that long-lived processes stay small."""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
"""This and the others as in glibc's ``malloc.h``."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
MAX_ARENAS: Final = 2
LARGE_BYTES: Final = 4 * 1024 * 1024
"""More than a chunk of weights: fetching a buffer of that size anew each time costs a fifth of the
processor time that bulk takes."""


def keep_heap_small() -> bool:
    """Give large blocks back at once, and let threads share few heaps.

    To be called before there are any threads. With a heap for each, as is glibc's way, what threads
    that come and go have freed lies scattered over all of them; and after the first large block
    that is freed, those like it come from the heap, too. So a process grows for hours though it
    holds no more than before.

    Returns:
        whether it was done; other C libraries know no such thing.
    """
    wanted = (
        (_M_ARENA_MAX, MAX_ARENAS),
        (_M_MMAP_THRESHOLD, LARGE_BYTES),
        (_M_TRIM_THRESHOLD, LARGE_BYTES),
    )
    try:
        mallopt = ctypes.CDLL(None).mallopt
        # Each of them, whatever fails.
        done = [bool(mallopt(name, value)) for name, value in wanted]
    except (AttributeError, OSError):
        return False
    return all(done)
