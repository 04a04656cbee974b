"""Which part of a completion is the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.tasks.answers import AnswerIn, extract


@pytest.mark.parametrize(
    ("completion", "where", "answer"),
    [
        (" 7 \n8 ", "whole", "7 \n8"),
        (" 7 \n8 ", "first_line", "7"),
        ("\n7", "first_line", ""),
        ("6\n 7 \n\n", "last_line", "7"),
        ("", "last_line", ""),
        ("<answer>6</answer> no, <answer>\n7 </answer>.", "tags", "7"),
        ("<answer>7", "tags", None),
        ("7</answer>", "tags", None),
        ("</answer>7<answer>", "tags", None),
        ("<answer>6 <answer>7</answer>", "tags", "7"),
        ("<answer></answer>", "tags", ""),
    ],
)
def test_the_answer_is_the_part_that_was_asked_for(
    completion: str, where: AnswerIn, answer: str | None
) -> None:
    assert extract(completion, where) == answer


@given(
    completion=st.lists(st.sampled_from(["<answer>", "</answer>", "\n", " ", "7"])).map("".join),
    where=st.sampled_from(["whole", "first_line", "last_line", "tags"]),
)
def test_an_answer_is_part_of_the_completion_without_space_around_it(
    completion: str, where: AnswerIn
) -> None:
    answer = extract(completion, where)

    assert answer is None or (answer in completion and answer == answer.strip())
    assert answer is not None or where == "tags"
