"""Sort digits, the largest first: ``312=`` asks for ``321``."""

from typing import Annotated, Literal

import msgspec

from learner.tasks.base import TaskOptions, seed_of


class Options(TaskOptions, frozen=True, kw_only=True):
    """The ``[task]`` table of this kind."""

    kind: Literal["count_down"] = "count_down"
    num_digits: Annotated[int, msgspec.Meta(ge=2, le=5)] = 3
    """Digits per prompt."""


class CountDown:
    """Prompts without end; the same seed and index always give the same prompt."""

    num_prompts = None
    stop: tuple[str, ...] = ()

    def __init__(self, num_digits: int, *, seed: int) -> None:
        self._num_digits = num_digits
        self._seed = seed
        self.description = f"sort {num_digits} digits, the largest first"

    def prompt(self, index: int) -> str:
        """Return digits and ``=``."""
        number = seed_of("count_down", self._seed, index) % 10**self._num_digits
        return f"{number:0{self._num_digits}d}="

    def score(self, index: int, completion: str) -> float:
        """Return the share of digits that are in their place; 0 for another length."""
        answer = sorted(self.prompt(index).rstrip("="), reverse=True)
        if len(completion) != len(answer):
            return 0.0
        return sum(a == b for a, b in zip(completion, answer, strict=True)) / len(answer)


def open_task(options: Options, *, seed: int) -> CountDown:
    """Make the task ready."""
    return CountDown(options.num_digits, seed=seed)
