"""What of a task can be seen before a run begins, in a process of its own: its code is the user's.

Whether its data can be read and its functions found; and whether the verifier can read the right
answers, of which it would otherwise say at each completion that they can't be.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from echo2swarm.processes.parent import open_child
from echo2swarm.system.errors import ChildError, ConfigError
from protocols.codec import Message

MODULE: Final = "learner.scoring.check_worker"
LIMIT_S: Final = 10.0
"""For the right answers: those of thousands of lines, and a sample of more."""
_OPEN_S: Final = 300.0
"""Importing and reading data can be slow."""
_NAME: Final = "task check"

log = structlog.get_logger()


class CheckTask(Message, frozen=True, tag="check_task"):
    """Make the task ready, and have it look at its right answers."""

    task: dict[str, Any]
    """The ``[task]`` table of the resolved config."""
    seed: int
    limit_s: float
    """So long answers are looked at."""


class TaskChecked(Message, frozen=True):
    """The task can be made ready, and of its right answers none is known to be wrong."""

    num_checked: int
    """Right answers that were looked at."""
    num_answers: int
    """How many there are to look at."""


def has_answers_to_check(task: Mapping[str, Any]) -> bool:
    """Whether a ``[task]`` table names right answers that may turn out to be none."""
    return task.get("kind") == "jsonl" and task.get("score", "math") == "math"


async def check_task(task: Mapping[str, Any], *, seed: int, log_path: Path | None = None) -> None:
    """Do nothing if a task can be done.

    Raises:
        ConfigError: it can't; the message says why.
        ChildError: the process died or hung.
    """
    async with open_child(MODULE, name=_NAME, log_path=log_path) as child:
        try:
            found = await child.call(
                CheckTask(dict(task), seed, LIMIT_S), TaskChecked, timeout_s=_OPEN_S + LIMIT_S
            )
        except ChildError as exc:
            child.kill()
            failed = exc
        else:
            child.kill()
            if found.num_checked < found.num_answers:
                log.info(
                    "answers.checked",
                    num_checked=found.num_checked,
                    num_answers=found.num_answers,
                    why=f"there was time for so many in {LIMIT_S:g} s",
                )
            return
    # Raised out here, so that it does not come in an exception group.
    if failed.error == ConfigError.__name__:
        raise ConfigError(str(failed).removeprefix(f"{_NAME}: {failed.error}: "))
    raise failed
