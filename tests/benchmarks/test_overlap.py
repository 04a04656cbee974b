import pytest

from benchmarks.overlap import QUICK, Measured, config_for, judge


def run(max_staleness: int, busy_share: float, stalest: int = 0) -> Measured:
    return Measured(
        max_staleness=max_staleness,
        busy_share=busy_share,
        seconds_per_step=1.0,
        stalest=stalest,
    )


@pytest.mark.parametrize(
    ("on_policy", "stale", "good"),
    [
        (0.5, 0.9, True),
        (0.5, 0.57, False),
        (0.1, 0.15, False),
        (0.8, 0.91, False),
        (0.9, 0.5, False),
    ],
)
def test_a_gain_must_be_clear_in_ratio_and_in_difference(
    on_policy: float, stale: float, good: bool
) -> None:
    assert judge([run(0, on_policy), run(2, stale)], QUICK).is_good is good


def test_medians_are_compared() -> None:
    found = [run(0, 0.5), run(2, 0.9), run(2, 0.8), run(0, 0.9), run(0, 0.4), run(2, 0.1)]

    assert judge(found, QUICK).rows[0][1] == 0.5
    assert judge(found, QUICK).rows[1][1] == 0.8


def test_a_rollout_beyond_the_bound_is_a_failure() -> None:
    assert not judge([run(0, 0.5, stalest=1), run(2, 0.9)], QUICK).is_good


def test_nothing_differs_but_the_bound() -> None:
    on_policy, stale = config_for(QUICK, 0), config_for(QUICK, 2)

    assert on_policy.trainer == stale.trainer
    assert on_policy.rollouts.max_staleness == 0
    assert stale.rollouts.max_staleness == 2
