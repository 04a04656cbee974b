"""The port that every task has, and what tasks have in common."""

import random
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from echo2swarm.text.toml_tables import Table
from learner.tasks.splitting import HeldOutBy


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    content: str


class RefusedAnswerError(Exception):
    """An answer is not looked at, as that would cost too much: it counts as wrong.

    Raised by a verifier; the message says why.
    """


PromptText = str | tuple[Turn, ...]
"""Plain text, or a chat that is rendered with the model's own template."""


class Task(Protocol):
    """Prompts without end, numbered from 0, and a verifier.

    The same seed and index always give the same prompt, also in another process: a scorer
    that died is started again, and scores completions of prompts that it never drew.
    """

    @property
    def description(self) -> str:
        """What the task is, in one line for people."""
        ...

    @property
    def num_prompts(self) -> int | None:
        """How many different prompts there are; None where new ones are made without end."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts at which a completion ends; what follows, and they themselves, are not scored."""
        ...

    def prompt(self, index: int) -> PromptText:
        """Return prompt number ``index`` of the run."""
        ...

    def score(self, index: int, completion: str) -> float:
        """Return the reward of ``completion``, which answers prompt ``index``; finite.

        What it raises is recorded, and that completion alone is left out.
        """
        ...


class TaskOptions(Table, frozen=True, kw_only=True):
    """What every ``[task]`` table may contain."""

    kind: str
    """Which task: "arithmetic", "sort_digits", "reasoning_gym", "jsonl", "function", or one that
    an installed package brings."""
    score_limit_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 2.0
    """A completion that takes longer to score is left out, and counted; a node of which that
    happens again and again has to wait."""
    num_scorers: Literal["auto"] | Annotated[int, msgspec.Meta(ge=1, le=64)] = "auto"
    """Processes that score, each with the data and the verifier in memory; "auto": 2 to 4, by the
    machine's cores."""
    held_out_share: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.1
    """About this share of the prompts is never trained on, but kept for evaluation. Where prompts
    are made without end, those of an evaluation are others anyway (docs/evaluate.md)."""
    held_out_by: HeldOutBy = "content"
    """Which prompts these are. "content": those whose question has a certain hash, whatever else
    there is, so that lines can be added; "position": as older software chose them, for its runs."""

    keep_special: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=100)], ...] = ()
    """Special tokens of the model that the verifier is to see; others are left out of the text."""

    path_keys: ClassVar[tuple[str, ...]] = ()
    """Options that are paths; where relative, they start from the configuration's folder."""

    def texts_kept(self) -> tuple[str, ...]:
        """Return the special tokens that stay in the text of a completion."""
        return self.keep_special


class TaskKind(Protocol):
    """What a module, or any object, must have to be a kind of task."""

    Options: type[TaskOptions]

    def open_task(self, options: Any, *, seed: int) -> Task:  # noqa: ANN401  # of its own kind
        """Make the task ready.

        Raises:
            ConfigError: an option does not fit the data; the message names both.
        """
        ...


@runtime_checkable
class HoldsOut(Protocol):
    """A task with a fixed number of prompts, of which it keeps some back."""

    def held_out(self) -> Task:
        """Return the task of the prompts that are never trained on."""
        ...


@runtime_checkable
class ChecksAnswers(Protocol):
    """A task that can see beforehand whether its verifier can read its right answers."""

    def check_answers(self, *, limit_s: float) -> tuple[int, int]:
        """Look at right answers, at all of them if ``limit_s`` suffices.

        Returns:
            How many were looked at, and how many there are.

        Raises:
            ConfigError: some can't be read; the message names file, line and option.
        """
        ...


def seed_of(*parts: object) -> int:
    """Return a number below 2**31 that is as good as random, and the same for the same parts."""
    return random.Random(" ".join(map(str, parts))).randrange(2**31)  # noqa: S311
