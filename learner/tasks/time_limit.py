"""A limit on how long foreign code may run, in the main thread of a process of ours."""

import signal
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

T = TypeVar("T")

_INSIST_S: Final = 0.5


class TimeLimitError(TimeoutError):
    """A call took longer than it may; not to be mixed up with a time-out inside it."""


class _TimeIsUpError(BaseException):
    """Not an :class:`Exception`, so that ``except Exception`` in foreign code lets it through."""


def call_within(limit_s: float, function: Callable[[], T]) -> T:
    """Return what ``function`` returns.

    A computation inside one call into C can't be stopped so: that is for the parent process.
    Code that sets SIGALRM itself (a limit of its own, say) takes ours off.

    Raises:
        TimeLimitError: it ran for longer than ``limit_s``.
    """
    is_armed = True

    def interrupt(_signum: int, _frame: object) -> None:
        if is_armed:
            _raise()

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        # Again and again: a bare `except:` may swallow it once.
        signal.setitimer(signal.ITIMER_REAL, limit_s, _INSIST_S)
        try:
            return function()
        finally:
            is_armed = False
    except _TimeIsUpError:
        raise TimeLimitError(f"took longer than {limit_s:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _raise() -> NoReturn:
    raise _TimeIsUpError
