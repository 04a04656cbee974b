"""Prompts as tokens, and tokens as rewards: the work of the scorer process, without its wire."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from echo2swarm.system.errors import ConfigError
from learner.scoring.messages import (
    MAX_REWARD,
    MAX_TOLD,
    CompletionToScore,
    Prompt,
    Prompts,
    Reward,
    ScoreFault,
    Scores,
    SkippedPrompt,
    TaskOpened,
    sha256_of_prompt,
    told,
)
from learner.scoring.tokenization import ModelTokenizer
from learner.tasks.base import RefusedAnswerError, Task
from learner.tasks.held_out import open_held_out
from learner.tasks.inputs import HasInputs
from learner.tasks.locating import where_of
from learner.tasks.registry import open_task
from learner.tasks.time_limit import TimeLimitError, call_within
from protocols.packed import pack_tokens, unpack_tokens

MAX_TEXT_CHARS: Final = 2000
PROMPT_LIMIT_S: Final = 30.0
"""For one prompt to be made."""
CHECK_S: Final = 5.0
"""So long prompts are tried out before the run begins: tens of thousands of a file."""
MAX_CHECKED: Final = 200_000
NUM_CHECKED_OF_ENDLESS: Final = 32
"""Where prompts are made without end, each may take a while."""
MAX_FAILED_SHARE: Final = 0.5
"""Of the prompts that were tried out; beyond, the task is refused."""
_MAX_ERROR_CHARS: Final = 500
_MAX_SHOWN_CHARS: Final = 80

OnDone = Callable[[int], None]
"""Called with how many are done."""


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
        """Make the task of a ``[task]`` table ready, or its held-out prompts; see :meth:`check`.

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
        return cls(task, tokenizer, score_limit_s=options.score_limit_s, kept=options.texts_kept())

    def check(self, *, limit_s: float = CHECK_S) -> Prompts:
        """Try prompts out, as many as that takes ``limit_s``: all of a file that is not huge.

        Returns:
            Those that can't be made, and the others without their tokens and texts.

        Raises:
            ConfigError: most of them can't be made; the message says why of the first.
        """
        num_prompts = self._task.num_prompts
        most = NUM_CHECKED_OF_ENDLESS if num_prompts is None else min(num_prompts, MAX_CHECKED)
        until_s = time.monotonic() + limit_s
        made: list[Prompt] = []
        skipped: list[SkippedPrompt] = []
        for index in range(most):
            found = self._prompt(index)
            if isinstance(found, SkippedPrompt):
                skipped.append(found)
            else:
                made.append(Prompt(index, b"", ""))
            if time.monotonic() > until_s:
                break
        if made and self._prompt(made[0].index) != self._prompt(made[0].index):
            raise ConfigError(
                f"[task]: it makes another prompt of number {made[0].index} each time it is asked, "
                "so that nobody could score the answers; make_prompt must return the same for the "
                "same arguments"
            )
        num_tried = len(made) + len(skipped)
        if len(skipped) > MAX_FAILED_SHARE * num_tried:
            raise ConfigError(
                f"{len(skipped)} of {num_tried} prompts tried out can't be made; the first: "
                f"{told(skipped[0])}"
            )
        return Prompts(tuple(made), tuple(skipped))

    def describe(self, checked: Prompts | None = None) -> TaskOpened:
        """Return what the learner needs to know of the task, and of the prompts tried out."""
        checked = checked or Prompts(())
        eos = self._tokenizer.eos_token_ids
        return TaskOpened(
            description=self._task.description,
            num_prompts=self._task.num_prompts,
            vocab_size=self._tokenizer.vocab_size,
            eos_token_id=eos[0] if eos else None,
            stop_token_ids=self._tokenizer.stop_token_ids(self._task.stop),
            inputs=self._task.inputs if isinstance(self._task, HasInputs) else (),
            warnings=self._tokenizer.warnings,
            num_checked=len(checked.prompts) + len(checked.skipped),
            skipped=checked.skipped[:MAX_TOLD],
            num_skipped=len(checked.skipped),
        )

    def draw(self, start: int, count: int, on_drawn: OnDone | None = None) -> Prompts:
        """Return ``count`` prompts from number ``start`` on; those that can't be made apart."""
        made: list[Prompt] = []
        skipped: list[SkippedPrompt] = []
        for num_done, index in enumerate(range(start, start + count), start=1):
            found = self._prompt(index)
            if isinstance(found, SkippedPrompt):
                skipped.append(found)
            else:
                made.append(found)
            if on_drawn is not None:
                on_drawn(num_done)
        return Prompts(tuple(made), tuple(skipped))

    def score(self, completions: Sequence[CompletionToScore], on_scored: OnDone) -> Scores:
        """Return the rewards of ``completions``, in their order, up to one that takes too long.

        Also where all of them together took as long as one may: then others may come first.
        """
        rewards = []
        until_s = time.monotonic() + self._score_limit_s
        for num_done, completion in enumerate(completions, start=1):
            reward = self._score(completion)
            rewards.append(reward)
            on_scored(num_done)
            if reward.fault is ScoreFault.TIMEOUT or time.monotonic() > until_s:
                break
        return Scores(tuple(rewards))

    def _prompt(self, index: int) -> Prompt | SkippedPrompt:
        # The user's code and data: one that can't be made must not end the run.
        try:
            return call_within(PROMPT_LIMIT_S, lambda: self._made(index))
        except (Exception, SystemExit) as exc:
            return SkippedPrompt(index, self._where(index, exc), _told(exc))

    def _made(self, index: int) -> Prompt:
        tokens, text = self._tokenizer.encode(self._task.prompt(index))
        return Prompt(index, pack_tokens(tokens), text, self._where(index))

    def _where(self, index: int, error: BaseException | None = None) -> str:
        try:
            return where_of(self._task, index, error)
        except (Exception, SystemExit):
            return ""  # the user's code again

    def _score(self, completion: CompletionToScore) -> Reward:
        text = ""
        # Foreign code, on input from strangers: whatever goes wrong concerns this completion only.
        # SystemExit too, or a verifier's sys.exit() would end the process.
        try:
            text = self._tokenizer.completion_text(
                unpack_tokens(completion.tokens), stop=self._task.stop, kept=self._kept
            )
            value = call_within(self._score_limit_s, lambda: self._reward(completion, text))
        except RefusedAnswerError as exc:
            return Reward(
                0.0, text[:MAX_TEXT_CHARS], str(exc)[:_MAX_ERROR_CHARS], ScoreFault.TOO_COSTLY
            )
        except TimeLimitError as exc:
            return Reward(None, text[:MAX_TEXT_CHARS], _told(exc), ScoreFault.TIMEOUT)
        except (Exception, SystemExit) as exc:
            return Reward(None, text[:MAX_TEXT_CHARS], _told(exc), ScoreFault.FAILED)
        if not -MAX_REWARD <= value <= MAX_REWARD:  # nor NaN
            error = f"the verifier returned {value:g}; a reward lies within {MAX_REWARD:g}"
            return Reward(None, text[:MAX_TEXT_CHARS], error, ScoreFault.FAILED)
        return Reward(value, text[:MAX_TEXT_CHARS])

    def _reward(self, completion: CompletionToScore, text: str) -> float:
        """Return the reward, if the prompt of that number still is the one that was asked.

        Raises:
            ChangedPromptError: it is not.
        """
        prompt = self._made(completion.index)
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


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
