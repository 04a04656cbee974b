"""What the learner asks of its scorer process; specification: ``docs/specs/children.md``.

Task code is the user's own: it may import anything, be slow, or crash. So it
runs apart, is called with deadlines, and is restarted when it dies.
"""

import hashlib
from enum import StrEnum
from typing import Any, Final

from learner.tasks.inputs import Input
from protocols.codec import Message

MAX_REWARD: Final = 1e6
"""Of either sign: far beyond what verifiers give, and no sum of squares of it overflows."""
MAX_TOLD: Final = 10
"""Prompts that can't be made, of which it is told at once which they are."""


class OpenTask(Message, frozen=True, tag="open_task"):
    """Load the task and the tokenizer. First call."""

    task: dict[str, Any]
    """The ``[task]`` table of the resolved config."""
    model_dir: str
    seed: int
    held_out_from: int | None = None
    """For an evaluation: how many prompts the run trains on; those drawn are others then."""
    is_checked: bool = True
    """Whether the prompts are tried out first, for as long as that takes moments."""


class TaskOpened(Message, frozen=True):
    """The task is ready."""

    description: str
    num_prompts: int | None
    """None where prompts are made without end."""
    vocab_size: int
    eos_token_id: int | None
    stop_token_ids: tuple[int, ...]
    """What the task wants completions to stop at, as token ids (EOS included)."""
    inputs: tuple[Input, ...] = ()
    """What prompts and rewards depend on, beyond the options."""
    warnings: tuple[str, ...] = ()
    """What may be wrong with the model's files, for people."""
    num_checked: int = 0
    """Prompts that were tried out."""
    skipped: tuple["SkippedPrompt", ...] = ()
    """Those of them that can't be made; no more than some are named."""
    num_skipped: int = 0


class DrawPrompts(Message, frozen=True, tag="draw_prompts"):
    """Prompts number ``start`` to ``start + count - 1`` of the run, in an order set by the seed."""

    start: int
    count: int


class Prompt(Message, frozen=True):
    """One prompt."""

    index: int
    """Its number in the run; the group's id."""
    tokens: bytes
    """Packed."""
    text: str
    where: str = ""
    """File and line of what it is made from, where the task knows."""


class SkippedPrompt(Message, frozen=True):
    """A prompt that can't be made."""

    index: int
    where: str
    """File and line, or function, of what it would be made from; empty if that is not known."""
    error: str


class Prompts(Message, frozen=True):
    """The answer to :class:`DrawPrompts`."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[SkippedPrompt, ...] = ()
    """Those asked for that can't be made."""


class CompletionToScore(Message, frozen=True):
    """One completion to score."""

    index: int
    """Of its prompt."""
    tokens: bytes
    """Packed."""
    prompt_sha256: bytes
    """Of the prompt that was asked, packed; an answer to any other one is not scored."""


def sha256_of_prompt(prompt_tokens: bytes) -> bytes:
    """Return what tells a prompt, packed, from every other."""
    return hashlib.sha256(prompt_tokens).digest()


class Score(Message, frozen=True, tag="score"):
    """Score completions."""

    completions: tuple[CompletionToScore, ...]


class ScoreFault(StrEnum):
    """What was wrong with a completion, or with the verifier on it."""

    FAILED = "failed"
    """The verifier raised, returned what is no reward, or brought its process down."""
    TIMEOUT = "timeout"
    """It took longer than it may."""
    TOO_COSTLY = "too_costly"
    """It was not looked at, as that would have taken too long: it counts as wrong."""
    WAITING = "waiting"
    """It was not looked at, as its node has used up its share of the scorer's time."""


class Reward(Message, frozen=True):
    """The score of one completion."""

    reward: float | None
    """None if there is none, for what ``fault`` says."""
    text: str
    """The completion as text, cut at 2,000 characters; for samples in the log."""
    error: str = ""
    fault: ScoreFault | None = None


class Scores(Message, frozen=True):
    """The answer to :class:`Score`, in its order; fewer where one took longer than it may.

    So that the others wait for their turn again.
    """

    rewards: tuple[Reward, ...]


ScorerCall = OpenTask | DrawPrompts | Score


def told(skipped: SkippedPrompt) -> str:
    """Return in words which prompt can't be made, and why."""
    where = f", {skipped.where}" if skipped.where else ""
    return f"prompt {skipped.index}{where}: {skipped.error}"
