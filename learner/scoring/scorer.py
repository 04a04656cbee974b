"""Prompts as tokens, and tokens as rewards: the work of the scorer process, without its wire."""

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from echo2swarm.errors import ConfigError
from learner.scoring.messages import (
    Completion,
    Prompt,
    Prompts,
    Reward,
    Scores,
    TaskOpened,
    sha256_of_prompt,
)
from learner.scoring.time_limit import call_within
from learner.scoring.tokenization import ModelTokenizer
from learner.tasks.base import Task
from learner.tasks.held_out import open_held_out
from learner.tasks.inputs import HasInputs
from learner.tasks.registry import open_task
from protocols.packed import pack_tokens, unpack_tokens

MAX_TEXT_CHARS: Final = 2000
_MAX_ERROR_CHARS: Final = 500
_MAX_SHOWN_CHARS: Final = 80

OnScored = Callable[[int], None]
"""Called with how many completions are done."""


class ChangedPromptError(Exception):
    """A prompt is another than was asked under its number."""


class TaskScorer:
    """One task with the tokenizer of one model."""

    def __init__(
        self,
        task: Task,
        tokenizer: ModelTokenizer,
        *,
        score_limit_s: float,
        kept: Collection[str] = (),
    ) -> None:
        self._kept = kept
        self._task = task
        self._tokenizer = tokenizer
        self._score_limit_s = score_limit_s

    @classmethod
    def open(
        cls,
        table: dict[str, Any],
        model_dir: str,
        *,
        seed: int,
        held_out_from: int | None = None,
    ) -> "TaskScorer":
        """Make the task of a ``[task]`` table ready, or its held-out prompts.

        Raises:
            ConfigError: the table, its data or the model's folder does not fit.
        """
        tokenizer = ModelTokenizer(Path(model_dir))
        tokenizer.check_vocabulary()
        if held_out_from is None:
            task, options = open_task(table, seed=seed)
        else:
            task, options = open_held_out(table, seed=seed, num_trained=held_out_from)
        _check_stop(task.stop, tokenizer, is_asked_for=bool(table.get("stop")))
        scorer = cls(
            task, tokenizer, score_limit_s=options.score_limit_s, kept=options.texts_kept()
        )
        # What is wrong with prompts shows now, not at the first step.
        if scorer.draw(0, 1) != scorer.draw(0, 1):
            raise ConfigError(
                "[task]: it makes another prompt of number 0 each time it is asked, so that nobody "
                "could score the answers; make_prompt must return the same for the same arguments"
            )
        return scorer

    def describe(self) -> TaskOpened:
        """Return what the learner needs to know of the task."""
        eos = self._tokenizer.eos_token_ids
        return TaskOpened(
            description=self._task.description,
            num_prompts=self._task.num_prompts,
            vocab_size=self._tokenizer.vocab_size,
            eos_token_id=eos[0] if eos else None,
            stop_token_ids=self._tokenizer.stop_token_ids(self._task.stop),
            inputs=self._task.inputs if isinstance(self._task, HasInputs) else (),
            warnings=self._tokenizer.warnings,
        )

    def draw(self, start: int, count: int) -> Prompts:
        """Return ``count`` prompts from number ``start`` on."""
        return Prompts(tuple(self._prompt(index) for index in range(start, start + count)))

    def score(self, completions: Sequence[Completion], on_scored: OnScored) -> Scores:
        """Return the rewards of ``completions``, in their order."""
        rewards = []
        for num_done, completion in enumerate(completions, start=1):
            rewards.append(self._score(completion))
            on_scored(num_done)
        return Scores(tuple(rewards))

    def _prompt(self, index: int) -> Prompt:
        tokens, text = self._tokenizer.encode(self._task.prompt(index))
        return Prompt(index, pack_tokens(tokens), text)

    def _score(self, completion: Completion) -> Reward:
        text = ""
        # Foreign code, on input from strangers: whatever goes wrong concerns this completion only.
        # SystemExit too, or a verifier's sys.exit() would end the process.
        try:
            text = self._tokenizer.completion_text(
                unpack_tokens(completion.tokens), stop=self._task.stop, kept=self._kept
            )
            value = call_within(self._score_limit_s, lambda: self._reward(completion, text))
        except (Exception, SystemExit) as exc:
            error = f"{type(exc).__name__}: {exc}"[:_MAX_ERROR_CHARS]
            return Reward(None, text[:MAX_TEXT_CHARS], error)
        if not math.isfinite(value):
            return Reward(None, text[:MAX_TEXT_CHARS], f"the verifier returned {value}")
        return Reward(value, text[:MAX_TEXT_CHARS])

    def _reward(self, completion: Completion, text: str) -> float:
        """Return the reward, if the prompt of that number still is the one that was asked.

        Raises:
            ChangedPromptError: it is not.
        """
        prompt = self._prompt(completion.index)
        if sha256_of_prompt(prompt.tokens) != completion.prompt_sha256:
            raise ChangedPromptError(
                f"prompt {completion.index} is not the one that was asked: the task makes another "
                f"of that number now, {prompt.text[:_MAX_SHOWN_CHARS]!r}"
            )
        return float(self._task.score(completion.index, text))


def _check_stop(stop: Sequence[str], tokenizer: ModelTokenizer, *, is_asked_for: bool) -> None:
    """See that each stop text can come about, or the run's own would do nothing in silence.

    Raises:
        ConfigError: one can't.
    """
    for text in stop if is_asked_for else ():
        if not tokenizer.can_write(text):
            raise ConfigError(
                f"task.stop: {text!r} would never stop anything: this model's tokenizer can't "
                "write it; choose a text that it can, or leave it out"
            )
