"""Figures and intervals, against known values and by simulation."""

import numpy as np
import pytest

from learner.evaluation.statistics import bootstrap_mean, figures, paired_difference, wilson


@pytest.mark.parametrize(
    ("num_right", "num_trials", "low", "high"),
    # 81 of 263: Newcombe, Statist. Med. 17, 1998, 857-872; others solved from the definition.
    [
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_wilson_is_as_published(num_right: int, num_trials: int, low: float, high: float) -> None:
    estimate = wilson(num_right, num_trials)

    assert estimate.value == num_right / num_trials
    assert estimate.low == pytest.approx(low, abs=1e-4)
    assert estimate.high == pytest.approx(high, abs=1e-4)


def test_figures_are_those_written_out() -> None:
    found = figures([[1.0, 0.0], [0.5, 0.5], [1.0, 1.0], [0.0, 0.2]], [1.0, 0.5, 1.0, 0.0])

    assert (found.num_prompts, found.samples_per_prompt) == (4, 2)
    assert found.mean_at_k.value == pytest.approx((0.5 + 0.5 + 1.0 + 0.1) / 4)
    assert found.pass_at_1.value == pytest.approx((0.5 + 0 + 1 + 0) / 4)
    assert found.pass_at_k.value == 0.5
    assert found.greedy_accuracy is not None
    assert found.greedy_accuracy.value == 0.5
    assert figures([[1.0]], None).greedy_accuracy is None


def test_a_bootstrap_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    num_held = 0
    for _ in range(100):
        estimate = bootstrap_mean(rng.normal(0.3, 1.0, size=60))
        num_held += estimate.low <= 0.3 <= estimate.high

    assert 88 <= num_held <= 99
    values = rng.normal(size=30)
    assert bootstrap_mean(values) == bootstrap_mean(values)


def test_pairs_tell_apart_what_single_intervals_do_not() -> None:
    rng = np.random.default_rng(2)
    hardness = rng.uniform(size=(50, 1))
    worse = np.repeat(hardness, 2, axis=1)
    better = worse + 0.05 + rng.normal(0, 0.02, size=worse.shape)

    difference = paired_difference(better.tolist(), worse.tolist())

    assert difference.value == pytest.approx(0.05, abs=0.02)
    assert difference.low > 0
    one, two = (figures(table.tolist(), None).mean_at_k for table in (better, worse))
    assert two.high > one.low
    with pytest.raises(ValueError, match="not the same"):
        paired_difference([[1.0]], [[1.0], [0.0]])
