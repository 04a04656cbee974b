"""From a question to a prompt: as it is, as a chat, or behind worked examples."""

import string
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from echo2swarm.system.errors import ConfigError
from echo2swarm.text.suggest import suggest
from learner.tasks.answers import ANSWER_TAGS, AnswerIn
from learner.tasks.base import PromptText, TaskOptions, Turn

_ANSWER: Final = "{answer}"


class PromptOptions(TaskOptions, frozen=True, kw_only=True):
    """How a question becomes a prompt, and where in a completion its answer is."""

    template: Literal["plain", "chat", "few_shot"] = "chat"
    """"plain": the question as it is; "chat": with the model's chat template; "few_shot": behind
    worked examples, in plain text."""
    system: str = ""
    """System message, for template = "chat"; none if empty. A chat of the data that begins with one
    keeps its own."""
    instruction: str = ""
    """Put behind the question on a line of its own; for "plain" and "chat"."""
    num_shots: Annotated[int, msgspec.Meta(ge=0, le=64)] = 3
    """Worked examples, for template = "few_shot"."""
    example: str = "Question: {question}\nAnswer: {answer}"
    """How a worked example is written, for template = "few_shot"; must end with {answer}. Other
    fields of the data may be used as well."""
    stop: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=100)], ...] | None = None
    """Completions end at these texts; by default where a worked example would end, or nowhere."""
    answer_in: AnswerIn = "whole"
    """Which part of the completion is scored: "whole", "first_line", "last_line", or "tags": what
    is between <answer> and </answer>."""

    def texts_kept(self) -> tuple[str, ...]:
        """Return the special tokens that stay in the text of a completion: tags of answers, too."""
        return (*self.keep_special, *(ANSWER_TAGS if self.answer_in == "tags" else ()))


Fields = Mapping[str, Any]
"""Of one question; ``question``, text or a chat, and ``answer`` are always there."""


class Prompter:
    """Makes prompts as the options say.

    Args:
        options: as configured.
        shots: the fields of the worked examples.
    """

    def __init__(self, options: PromptOptions, shots: Sequence[Fields]) -> None:
        self._options = options
        self._examples = ""
        self._stop: tuple[str, ...] = ()
        if options.template == "few_shot":
            if not options.example.endswith(_ANSWER):
                raise ConfigError(f"task.example must end with {_ANSWER}, got {options.example!r}")
            examples = [_filled(options.example, shot) for shot in shots]
            # An example of one line ends with it; others, and their answers, have lines inside.
            has_lines = any("\n" in text for text in (*examples, options.example))
            end = "\n\n" if has_lines else "\n"
            self._examples = "".join(example + end for example in examples)
            self._stop = (end,)
        if options.stop is not None:
            self._stop = options.stop

    @property
    def stop(self) -> tuple[str, ...]:
        """Where completions end."""
        return self._stop

    def render(self, fields: Fields) -> PromptText:
        """Return the prompt for one question."""
        options = self._options
        if options.template == "few_shot":
            asked = _filled(options.example.removesuffix(_ANSWER), fields)
            # Tokenizers join a space to the word behind it: it is for the model to write.
            return self._examples + asked.rstrip(" ")
        question = fields["question"]
        if not isinstance(question, str):
            return self._chat(question)
        if options.instruction:
            question = f"{question}\n{options.instruction}"
        if options.template == "plain":
            return question
        system = (Turn("system", options.system),) if options.system else ()
        return (*system, Turn("user", question))

    def _chat(self, turns: tuple[Turn, ...]) -> PromptText:
        """Return a chat of the data with what the options add."""
        options = self._options
        if options.system and turns[0].role != "system":
            turns = (Turn("system", options.system), *turns)
        if options.instruction and turns[-1].role == "user":
            asked = f"{turns[-1].content}\n{options.instruction}"
            turns = (*turns[:-1], Turn("user", asked))
        elif options.instruction:
            turns = (*turns, Turn("user", options.instruction))
        return turns


def _filled(template: str, fields: Fields) -> str:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as exc:
        raise ConfigError(f"task.example: {exc}; write {{{{ for a brace") from None
    for name in names:
        if name not in fields:
            raise ConfigError(
                f'task.example: the data has no field "{name}"{suggest(name, fields)}'
            )
    return template.format_map(fields)
