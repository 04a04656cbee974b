"""Which versions an evaluation may be of."""

import pytest

from learner.evaluation.schedule import EvaluationSchedule


def schedule(*, first: int = 0, last: int = 30, every: int = 10) -> EvaluationSchedule:
    return EvaluationSchedule(every_steps=every, first_version=first, last_version=last)


@pytest.mark.parametrize(
    ("newest", "due"), [(0, 0), (1, 0), (9, 0), (10, 10), (19, 10), (25, 20), (29, 20), (30, 30)]
)
def test_a_version_is_due_every_so_many_steps_and_the_first_and_the_last(
    newest: int, due: int
) -> None:
    assert schedule().due(newest) == due


def test_the_last_version_is_due_also_between_multiples() -> None:
    assert schedule(last=27).due(26) == 20
    assert schedule(last=27).due(27) == 27


def test_a_run_that_begins_between_multiples_is_evaluated_at_its_first_version() -> None:
    assert schedule(first=13).due(13) == 13
    assert schedule(first=13).due(19) == 13
    assert schedule(first=13).due(20) == 20


def test_no_version_is_due_twice_nor_one_that_a_later_evaluation_has_passed_by() -> None:
    assert schedule().is_due(0, evaluated=None)
    assert not schedule().is_due(0, evaluated=0)
    assert not schedule().is_due(9, evaluated=0)
    assert schedule().is_due(10, evaluated=0)
    # The one due at 10 was made of version 12.
    assert not schedule().is_due(15, evaluated=12)
    assert schedule().is_due(20, evaluated=12)
    assert schedule().is_due(30, evaluated=29)
