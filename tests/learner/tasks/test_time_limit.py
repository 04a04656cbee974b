"""Foreign code under a limit; real time, but nothing is measured."""

import contextlib
import signal
import time

import pytest

from learner.tasks.time_limit import call_within


def test_what_is_in_time_returns_or_raises_as_it_is() -> None:
    def fail() -> int:
        raise KeyError("x")

    assert call_within(30, lambda: 7) == 7
    with pytest.raises(KeyError):
        call_within(30, fail)


def test_what_takes_too_long_is_stopped() -> None:
    with pytest.raises(TimeoutError, match=r"took longer than 0\.05 s"):
        call_within(0.05, lambda: time.sleep(50))


def test_code_that_catches_everything_is_stopped_too() -> None:
    def stubborn() -> None:
        for _ in range(3):
            with contextlib.suppress(BaseException):
                time.sleep(50)
        time.sleep(50)

    with pytest.raises(TimeoutError):
        call_within(0.05, stubborn)


@pytest.mark.parametrize("duration_s", [0.0, 50.0])
def test_the_alarm_is_off_and_the_handler_as_before_afterwards(duration_s: float) -> None:
    before = signal.getsignal(signal.SIGALRM)

    with contextlib.suppress(TimeoutError):
        call_within(0.05, lambda: time.sleep(duration_s))

    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before
