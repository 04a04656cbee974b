"""Sort three digits: the task of the tiny model that tests use; needs no data."""

from typing import Annotated, Literal

import msgspec

from learner.tasks.base import TaskOptions
from learner.tasks.splitting import EpochOrder, split


class Options(TaskOptions, frozen=True, kw_only=True):
    """``312=`` asks for ``123``; for tests, with a model whose tokens are characters."""

    kind: Literal["sort_digits"] = "sort_digits"
    num_digits: Annotated[int, msgspec.Meta(ge=2, le=5)] = 3
    """Digits per prompt."""


class SortDigits:
    """Every sequence of so many digits, in an order that the seed decides."""

    stop: tuple[str, ...] = ()

    def __init__(self, num_digits: int, order: EpochOrder) -> None:
        self._num_digits = num_digits
        self._order = order
        self.num_prompts = len(order)
        self.description = f"sort {num_digits} digits"

    def held_out(self) -> "SortDigits":
        """Return the task of the sequences that are never trained on."""
        return SortDigits(self._num_digits, self._order.held_out())

    def prompt(self, index: int) -> str:
        """Return digits and ``=``."""
        return f"{self._order[index]:0{self._num_digits}d}="

    def score(self, index: int, completion: str) -> float:
        """Return 1 if the completion is the sorted digits and nothing else, else 0."""
        answer = "".join(sorted(self.prompt(index).rstrip("=")))
        return float(completion == answer)


def open_task(options: Options, *, seed: int) -> SortDigits:
    """Make the task ready."""
    num_digits = options.num_digits
    contents = [f"{number:0{num_digits}d}" for number in range(10**num_digits)]
    found = split(contents, share=options.held_out_share, by=options.held_out_by)
    return SortDigits(num_digits, EpochOrder(found, seed=seed))
