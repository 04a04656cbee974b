"""Questions with answers from a file of JSON lines; mathematics or exact text."""

import random
import time
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from echo2swarm.system.errors import ConfigError
from learner.tasks.answers import extract
from learner.tasks.base import PromptText
from learner.tasks.inputs import Input, package_input
from learner.tasks.math_answers import MATH_PACKAGES, math_verifier
from learner.tasks.prompting import Prompter, PromptOptions
from learner.tasks.rows import Row, Rows, content_of, read_rows
from learner.tasks.splitting import EpochOrder, split
from learner.tasks.time_limit import call_within

_READ_S: Final = 2.0
"""For one right answer."""
_MAX_SHOWN_CHARS: Final = 80


class Options(PromptOptions, frozen=True, kw_only=True):
    """Your own questions with answers, one JSON object per line."""

    kind: Literal["jsonl"] = "jsonl"
    path: str
    """The file."""
    question_field: str = "question"
    """Field with the question: text, or a chat as a list of {role, content} (template "chat")."""
    answer_field: str = "answer"
    """Field with the right answer, text or a number."""
    answer_after: str = ""
    """The right answer is what follows the last of these in its field; GSM8K has "####"."""
    score: Literal["math", "exact"] = "math"
    """"math": the same mathematically, wherever in the completion it is (math-verify); "exact":
    the same text, in the part that answer_in names."""

    path_keys: ClassVar[tuple[str, ...]] = ("path",)


class Jsonl:
    """The lines of a file, in an order that the seed decides, again and again."""

    def __init__(self, options: Options, rows: Rows, *, seed: int) -> None:
        num_shots = options.num_shots if options.template == "few_shot" else 0
        if len(rows.rows) <= num_shots:
            raise ConfigError(
                f"task.path: {options.path} has {len(rows.rows)} lines, and the first {num_shots} "
                "are worked examples (task.num_shots): nothing is left to ask"
            )
        questions = [_question(row, options) for row in rows.rows]
        self._answer_in = options.answer_in
        self._agree = math_verifier() if options.score == "math" else None
        self._prompter = Prompter(options, questions[:num_shots])
        self._places = [row.where for row in rows.rows[num_shots:]]
        self._rows = questions[num_shots:]
        self._name = Path(options.path).name
        packages = MATH_PACKAGES if options.score == "math" else ()
        self.inputs: tuple[Input, ...] = (rows.source, *package_input("task.score", *packages))
        self.stop = self._prompter.stop
        contents = [content_of(row["question"]) for row in self._rows]
        found = split(contents, share=options.held_out_share, by=options.held_out_by)
        self._follow(EpochOrder(found, seed=seed))

    def _follow(self, order: EpochOrder) -> None:
        self._order = order
        self.num_prompts = len(order)
        self.description = f"{len(order)} questions of {self._name}"

    def held_out(self) -> "Jsonl":
        """Return the task of the questions that are never trained on."""
        other = copy(self)
        other._follow(self._order.held_out())
        return other

    def prompt(self, index: int) -> PromptText:
        """Return the question of a line as a prompt."""
        return self._prompter.render(self._rows[self._order[index]])

    def where(self, index: int, _error: BaseException | None) -> str:
        """Return the file and line of a question."""
        return self._places[self._order[index]]

    def check_answers(self, *, limit_s: float) -> tuple[int, int]:
        """Have the verifier read the right answers, in an order that is a sample of them.

        Raises:
            ConfigError: it can't read some.
        """
        if self._agree is None:
            return 0, 0
        first = {row["answer"]: number for number, row in reversed(list(enumerate(self._rows)))}
        answers = list(first)
        random.Random(0).shuffle(answers)  # noqa: S311
        until_s = time.monotonic() + limit_s
        wrong: list[int] = []
        num_checked = 0
        for answer in answers:
            if not self._can_read(answer):
                wrong.append(first[answer])
            num_checked += 1
            if time.monotonic() > until_s:
                break
        if wrong:
            number = min(wrong)
            others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise ConfigError(
                f"{self._places[number]}: the verifier can't read the answer "
                f"{self._rows[number]['answer'][:_MAX_SHOWN_CHARS]!r} (task.answer_field) as "
                f'mathematics{others}; mend or remove such lines, or set task.score = "exact"'
            )
        return num_checked, len(answers)

    def _can_read(self, answer: str) -> bool:
        assert self._agree is not None  # noqa: S101  # the caller has looked
        try:
            call_within(_READ_S, partial(self._agree, answer, ""))
        except Exception:  # whatever the library makes of it
            return False
        return True

    def score(self, index: int, completion: str) -> float:
        """Return 1 for the right answer, else 0."""
        right = self._rows[self._order[index]]["answer"]
        if self._agree is None:
            return float(extract(completion, self._answer_in) == right)
        answer = completion if self._answer_in == "whole" else extract(completion, self._answer_in)
        return float(answer is not None and self._agree(right, answer))


def open_task(options: Options, *, seed: int) -> Jsonl:
    """Read the file and make the task ready."""
    return Jsonl(options, read_rows(options.path), seed=seed)


def _question(row: Row, options: Options) -> dict[str, Any]:
    """Return a line with its question and its bare answer under those names."""
    question = row.prompt(options.question_field, key="task.question_field")
    if not isinstance(question, str) and options.template != "chat":
        raise ConfigError(
            f'{row.where}: field "{options.question_field}" (task.question_field) is a chat, for '
            f'which task.template must be "chat", not "{options.template}"'
        )
    answer = row.answer(options.answer_field, key="task.answer_field")
    if options.answer_after:
        _, found, answer = answer.rpartition(options.answer_after)
        if not found:
            raise ConfigError(
                f"{row.where}: its answer does not contain {options.answer_after!r} "
                "(task.answer_after)"
            )
        if not answer.strip():
            raise ConfigError(
                f"{row.where}: its answer has nothing behind {options.answer_after!r} "
                "(task.answer_after)"
            )
    return {**row.fields, "question": question, "answer": answer.strip()}
