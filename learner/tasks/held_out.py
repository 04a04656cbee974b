"""Prompts for evaluation: of a run's task, and none that it trains on."""

from collections.abc import Mapping
from typing import Any, Final

from echo2swarm.system.errors import ConfigError
from learner.tasks.base import HoldsOut, PromptText, Task, TaskOptions, seed_of
from learner.tasks.inputs import HasInputs
from learner.tasks.registry import open_task

_MAX_MISSES: Final = 10_000
"""Prompts in a row that are trained on as well, after which there are taken to be no others."""


def open_held_out(
    table: Mapping[str, Any], *, seed: int, num_trained: int
) -> tuple[Task, TaskOptions]:
    """Make the held-out prompts of a ``[task]`` table ready.

    A task with a fixed number of prompts keeps some back (``task.held_out_share``). One that makes
    prompts without end makes others from another seed; those that the run trains on are left
    out, and none comes twice.

    Args:
        table: of the run.
        seed: of the run.
        num_trained: prompts that the run trains on, from number 0.

    Raises:
        ConfigError: something in the table does not fit, or there are none.
    """
    task, options = open_task(table, seed=seed)
    if isinstance(task, HoldsOut):
        return task.held_out(), options
    if task.num_prompts is not None:
        raise ConfigError(
            f'task.kind = "{options.kind}" has {task.num_prompts} prompts and holds none out for '
            "evaluation: it needs a method held_out()"
        )
    others, _ = open_task(table, seed=seed_of("held out", seed))
    return OtherPrompts(others, trained=task, num_trained=num_trained), options


class OtherPrompts:
    """Prompts of one task that are not among the first of another; all can be made."""

    num_prompts = None

    def __init__(self, others: Task, *, trained: Task, num_trained: int) -> None:
        self._others = others
        made = (_made(trained, index) for index in range(num_trained))
        self._seen = {prompt for prompt in made if prompt is not None}
        self._indices: list[int] = []
        self._next = 0
        self.description = f"{others.description}, held out"
        self.stop = others.stop
        self.inputs = others.inputs if isinstance(others, HasInputs) else ()

    def prompt(self, index: int) -> PromptText:
        """Return prompt number ``index``."""
        return self._others.prompt(self._index(index))

    def score(self, index: int, completion: str) -> float:
        """Return the reward of ``completion``."""
        return self._others.score(self._index(index), completion)

    def _index(self, index: int) -> int:
        num_missed = 0
        while len(self._indices) <= index:
            candidate = self._next
            # First: a prompt that takes too long is interrupted, and must not be met again.
            self._next += 1
            prompt = _made(self._others, candidate)
            if prompt is None or prompt in self._seen:
                num_missed += 1
                if num_missed > _MAX_MISSES:
                    raise ConfigError(
                        f"the task has no more than {len(self._indices)} prompts that the run does "
                        "not train on"
                    )
            else:
                num_missed = 0
                self._seen.add(prompt)
                self._indices.append(candidate)
        return self._indices[index]


def _made(task: Task, index: int) -> PromptText | None:
    """Return a prompt, or None if it can't be made: then it is neither trained on nor asked."""
    try:
        return task.prompt(index)
    except Exception:
        return None
