"""What the C library's allocator is asked for, so that long-lived processes stay small."""

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8
"""As in glibc's ``malloc.h``."""
MAX_ARENAS: Final = 2


def limit_arenas() -> bool:
    """Let threads share few heaps; to be called before there are any threads.

    With one heap for each, as is glibc's way, what threads that come and go have freed lies
    scattered over all of them, and a process grows for hours though it holds no more than before.

    Returns:
        whether it was done; other C libraries know no such thing.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MAX_ARENAS))
    except (AttributeError, OSError):
        return False
