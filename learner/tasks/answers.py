"""Which part of a completion is the answer."""

from typing import Final, Literal

AnswerIn = Literal["whole", "first_line", "last_line", "tags"]

ANSWER_TAGS: Final = ("<answer>", "</answer>")
"""Around the answer; some models have special tokens for them."""


def extract(completion: str, where: AnswerIn) -> str | None:
    """Return the answer, without white space around it; None where there is none.

    Args:
        completion: what the model wrote.
        where: "whole"; "first_line" even if it is empty; "last_line" that is not empty; or
            what is between the last ``<answer>`` and ``</answer>``.
    """
    match where:
        case "whole":
            return completion.strip()
        case "first_line":
            return completion.split("\n", 1)[0].strip()
        case "last_line":
            return completion.rstrip().rsplit("\n", 1)[-1].strip()
        case "tags":
            before, end, _ = completion.rpartition(ANSWER_TAGS[1])
            _, start, answer = before.rpartition(ANSWER_TAGS[0])
            return answer.strip() if end and start else None
