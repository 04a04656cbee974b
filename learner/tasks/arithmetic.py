"""One-digit addition and subtraction, three worked examples in front; needs no data."""

from typing import Annotated, Final, Literal

import msgspec

from learner.tasks.answers import extract
from learner.tasks.base import TaskOptions
from learner.tasks.splitting import EpochOrder, split

_SHOTS: Final = "4 + 3 = 7\n8 - 2 = 6\n3 - 5 = -2\n"


class Options(TaskOptions, frozen=True, kw_only=True):
    """Addition and subtraction of small numbers, exact answers; a first task for small models."""

    kind: Literal["arithmetic"] = "arithmetic"
    largest: Annotated[int, msgspec.Meta(ge=1, le=99)] = 9
    """Both numbers are 1 to this."""


class Arithmetic:
    """Every pair of numbers with either sign, in an order that the seed decides."""

    stop = ("\n",)

    def __init__(self, largest: int, order: EpochOrder) -> None:
        self._largest = largest
        self._order = order
        self.num_prompts = len(order)
        self.description = f"addition and subtraction of 1 to {largest}"

    def held_out(self) -> "Arithmetic":
        """Return the task of the problems that are never trained on."""
        return Arithmetic(self._largest, self._order.held_out())

    def prompt(self, index: int) -> str:
        """Return three worked examples, and a problem that ends in ``=``."""
        a, sign, b = self._problem(index)
        return f"{_SHOTS}{a} {sign} {b} ="

    def score(self, index: int, completion: str) -> float:
        """Return 1 if the first line is the answer and nothing else, else 0."""
        a, sign, b = self._problem(index)
        answer = a + b if sign == "+" else a - b
        return float(extract(completion, "first_line") == str(answer))

    def _problem(self, index: int) -> tuple[int, str, int]:
        return _problem(self._order[index], self._largest)


def _problem(number: int, largest: int) -> tuple[int, str, int]:
    rest, sign = divmod(number, 2)
    a, b = divmod(rest, largest)
    return a + 1, "+-"[sign], b + 1


def open_task(options: Options, *, seed: int) -> Arithmetic:
    """Make the task ready."""
    problems = [_problem(number, options.largest) for number in range(2 * options.largest**2)]
    contents = [f"{a} {sign} {b}" for a, sign, b in problems]
    found = split(contents, share=options.held_out_share, by=options.held_out_by)
    return Arithmetic(options.largest, EpochOrder(found, seed=seed))
