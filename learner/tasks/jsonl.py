"""Questions with answers from a file of JSON lines; mathematics or exact text."""

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from echo2swarm.errors import ConfigError
from echo2swarm.nearest import suggest
from learner.tasks.answers import extract
from learner.tasks.base import EpochOrder, PromptText
from learner.tasks.math_answers import math_verifier
from learner.tasks.prompting import Prompter, PromptOptions


class Options(PromptOptions, frozen=True, kw_only=True):
    """Your own questions with answers, one JSON object per line."""

    kind: Literal["jsonl"] = "jsonl"
    path: str
    """The file."""
    question_field: str = "question"
    """Field with the question."""
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

    def __init__(self, options: Options, rows: Sequence[Mapping[str, Any]], *, seed: int) -> None:
        num_shots = options.num_shots if options.template == "few_shot" else 0
        if len(rows) <= num_shots:
            raise ConfigError(
                f"task.path: {options.path} has {len(rows)} lines, and the first {num_shots} "
                "are worked examples (task.num_shots): nothing is left to ask"
            )
        self._answer_in = options.answer_in
        self._agree = math_verifier() if options.score == "math" else None
        self._prompter = Prompter(options, rows[:num_shots])
        self._rows = rows[num_shots:]
        self._name = Path(options.path).name
        self.stop = self._prompter.stop
        self._follow(EpochOrder(len(self._rows), seed=seed, held_out_share=options.held_out_share))

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

    def score(self, index: int, completion: str) -> float:
        """Return 1 for the right answer, else 0."""
        right = self._rows[self._order[index]]["answer"]
        if self._agree is None:
            return float(extract(completion, self._answer_in) == right)
        answer = completion if self._answer_in == "whole" else extract(completion, self._answer_in)
        return float(answer is not None and self._agree(right, answer))


def open_task(options: Options, *, seed: int) -> Jsonl:
    """Read the file and make the task ready."""
    rows = [
        _question(row, options, where=f"{options.path}, line {number}")
        for number, row in read_rows(options.path)
    ]
    return Jsonl(options, rows, seed=seed)


def read_rows(path: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects of a file of JSON lines with their line numbers; empty lines are skipped.

    Raises:
        ConfigError: it can't be read, a line is not an object, or there is none.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    rows = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    rows.append((number, decoder.decode(line)))
                except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
                    raise ConfigError(f"{path}, line {number}: not a JSON object: {exc}") from None
    except OSError as exc:
        raise ConfigError(f"task.path: can't read {path}: {exc.strerror}") from exc
    if not rows:
        raise ConfigError(f"task.path: {path} has no lines")
    return rows


def _question(row: dict[str, Any], options: Options, *, where: str) -> dict[str, Any]:
    """Return a line with its question and its bare answer under those names."""
    for key, name in (
        ("task.question_field", options.question_field),
        ("task.answer_field", options.answer_field),
    ):
        if name not in row:
            raise ConfigError(f'{where}: no field "{name}" ({key}){suggest(name, row)}')
    answer = str(row[options.answer_field])
    if options.answer_after:
        _, found, answer = answer.rpartition(options.answer_after)
        if not found:
            raise ConfigError(
                f"{where}: its answer does not contain {options.answer_after!r} (task.answer_after)"
            )
    return {**row, "question": str(row[options.question_field]), "answer": answer.strip()}
