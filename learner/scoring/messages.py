"""What the learner asks of its scorer process; specification: ``docs/specs/children.md``.

Task code is the user's own: it may import anything, be slow, or crash. So it
runs apart, is called with deadlines, and is restarted when it dies.
"""

import hashlib
from typing import Any

from learner.tasks.inputs import Input
from protocols.codec import Message


class OpenTask(Message, frozen=True, tag="open_task"):
    """Load the task and the tokenizer. First call."""

    task: dict[str, Any]
    """The ``[task]`` table of the resolved config."""
    model_dir: str
    seed: int
    held_out_from: int | None = None
    """For an evaluation: how many prompts the run trains on; those drawn are others then."""


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


class Prompts(Message, frozen=True):
    """The answer to :class:`DrawPrompts`."""

    prompts: tuple[Prompt, ...]


class Completion(Message, frozen=True):
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

    completions: tuple[Completion, ...]


class Reward(Message, frozen=True):
    """The score of one completion."""

    reward: float | None
    """None if the verifier failed on it."""
    text: str
    """The completion as text, cut at 2,000 characters; for samples in the log."""
    error: str = ""


class Scores(Message, frozen=True):
    """The answer to :class:`Score`, in its order."""

    rewards: tuple[Reward, ...]


ScorerCall = OpenTask | DrawPrompts | Score
