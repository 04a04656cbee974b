"""A child for tests: adds, fails, sleeps, dies."""

import os
import time

from echo2swarm.children.worker import OnProgress, serve
from protocols.codec import Message


class Add(Message, frozen=True, tag="add"):
    a: int
    b: int


class Fail(Message, frozen=True, tag="fail"):
    message: str


class Sleep(Message, frozen=True, tag="sleep"):
    seconds: float


class Exit(Message, frozen=True, tag="exit"):
    status: int


class Sum(Message, frozen=True):
    value: int


def handle(call: Add | Fail | Sleep | Exit, on_progress: OnProgress) -> Sum:
    match call:
        case Add(a, b):
            on_progress("adding", 1, 1)
            return Sum(a + b)
        case Fail(message):
            raise ValueError(message)
        case Sleep(seconds):
            print("going to sleep", flush=True)
            time.sleep(seconds)
            return Sum(0)
        case Exit(status):
            os._exit(status)


if __name__ == "__main__":
    serve(Add | Fail | Sleep | Exit, handle)  # type: ignore[arg-type]  # a union is no type[R]
