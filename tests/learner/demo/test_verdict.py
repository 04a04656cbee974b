import pytest

from learner.demo.verdict import judge_learning


@pytest.mark.parametrize(
    ("first", "last", "learned"), [(0.3, 0.5, True), (0.3, 0.499, False), (0.7, 0.3, False)]
)
def test_a_run_has_learned_if_its_last_ten_steps_beat_its_first_ten_by_a_fifth(
    first: float, last: float, learned: bool
) -> None:
    verdict = judge_learning([first] * 10 + [0.0] * 12 + [last] * 10, num_steps=32)

    assert verdict.has_learned is learned
    assert f"{first:.3f}" in verdict.why
    assert f"{last - first:+.3f}" in verdict.why


def test_a_run_that_ended_early_has_not_learned() -> None:
    verdict = judge_learning([0.0] * 10 + [1.0] * 10, num_steps=32)

    assert not verdict.has_learned
    assert verdict.why == "only 20 of 32 steps were done"


def test_one_step_can_not_be_compared() -> None:
    assert not judge_learning([1.0], num_steps=1).has_learned
