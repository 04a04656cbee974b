"""A child for tests: adds, fails, sleeps, starts another process, dies."""

import os
import subprocess
import sys
import time

from echo2swarm.processes.worker import Cancellations, OnProgress, serve_parent
from echo2swarm.system.errors import StoreError
from protocols.codec import Message


class Add(Message, frozen=True, tag="add"):
    a: int
    b: int


class Fail(Message, frozen=True, tag="fail"):
    message: str


class FailAsExpected(Message, frozen=True, tag="fail_as_expected"):
    message: str


class Sleep(Message, frozen=True, tag="sleep"):
    seconds: float


class SleepUntilCancelled(Message, frozen=True, tag="sleep_until_cancelled"):
    """Sleep, and look now and then whether anybody still waits."""


class Exit(Message, frozen=True, tag="exit"):
    status: int


class StartOther(Message, frozen=True, tag="start_other"):
    """Start a process that sleeps, and tell its number."""


class Sum(Message, frozen=True):
    value: int


CANCELLATIONS = Cancellations()


def handle(
    call: Add | Fail | FailAsExpected | Sleep | SleepUntilCancelled | Exit | StartOther,
    on_progress: OnProgress,
) -> Sum:
    match call:
        case SleepUntilCancelled():
            on_progress("sleeping", 0, 1)
            while True:
                CANCELLATIONS.check()
                time.sleep(0.01)
        case Add(a, b):
            on_progress("adding", 1, 1)
            return Sum(a + b)
        case Fail(message):
            raise ValueError(message)
        case FailAsExpected(message):
            raise StoreError(message)
        case Sleep(seconds):
            print("going to sleep", flush=True)
            time.sleep(seconds)
            return Sum(0)
        case Exit(status):
            os._exit(status)
        case StartOther():
            return Sum(_start_other())


def _start_other() -> int:
    program = "import time; time.sleep(3600)"
    # Not waited for: that it ends all the same is what is tested.
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    _others.append(other)
    return other.pid


_others: list["subprocess.Popen[bytes]"] = []


if __name__ == "__main__":
    calls = Add | Fail | FailAsExpected | Sleep | SleepUntilCancelled | Exit | StartOther
    serve_parent(calls, handle, cancellations=CANCELLATIONS)  # type: ignore[arg-type]  # a union is no type[R]
