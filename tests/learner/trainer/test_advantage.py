"""Advantages and length weights."""

import math
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from learner.trainer.advantage import group_advantages, length_weights

rewards = st.lists(st.integers(-8, 8).map(float), min_size=2, max_size=16)


@given(rewards, st.booleans())
def test_advantages_of_a_group_sum_to_zero_and_keep_its_order(
    group: list[float], scale: bool
) -> None:
    advantages = group_advantages(group, scale=scale)
    assume(advantages is not None)

    assert advantages is not None
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-9)
    for one in range(len(group)):
        for other in range(len(group)):
            if group[one] < group[other]:
                assert advantages[one] < advantages[other]


@given(rewards)
def test_scaled_advantages_have_unit_deviation(group: list[float]) -> None:
    advantages = group_advantages(group, scale=True)
    assume(advantages is not None)

    assert advantages is not None
    assert statistics.pstdev(advantages) == pytest.approx(1)


@given(rewards, st.integers(-5, 5), st.integers(1, 9))
def test_scaled_advantages_do_not_depend_on_the_scale_of_rewards(
    group: list[float], shift: int, factor: int
) -> None:
    other = group_advantages([factor * reward + shift for reward in group], scale=True)

    assert other == pytest.approx(group_advantages(group, scale=True))


def test_unscaled_advantages_are_differences_from_the_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 0.0], scale=False) == [0.75, -0.25, -0.25, -0.25]


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.booleans())
def test_a_group_of_equal_rewards_has_no_advantages(reward: float, size: int, scale: bool) -> None:
    assert group_advantages([reward] * size, scale=scale) is None


def test_tiny_differences_of_reward_do_not_overflow() -> None:
    advantages = group_advantages([0.0, 1e-200], scale=True)

    assert advantages == pytest.approx([-1.0, 1.0])


lengths = st.lists(st.integers(1, 50), min_size=1, max_size=10)


@given(lengths)
def test_the_token_norm_is_a_mean_over_tokens(sizes: list[int]) -> None:
    weights = length_weights(sizes, "token", constant=1)

    assert len(set(weights)) == 1
    total = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    assert total == pytest.approx(1)


@given(lengths)
def test_the_sequence_norm_gives_each_sample_the_same_total(sizes: list[int]) -> None:
    weights = length_weights(sizes, "sequence", constant=1)

    for weight, size in zip(weights, sizes, strict=True):
        assert weight * size == pytest.approx(1 / len(sizes))


@given(lengths, st.integers(1, 100))
def test_the_constant_norm_does_not_depend_on_lengths(sizes: list[int], constant: int) -> None:
    weights = length_weights(sizes, "constant", constant=constant)

    assert weights == [pytest.approx(1 / (len(sizes) * constant))] * len(sizes)


@pytest.mark.parametrize(
    "group",
    [
        [1.7e308, 1.7e308, -1.7e308],
        [1.7e308, -1.7e308],
        [1.7e308, -8e307, -8e307],
        [5e-324] + [0.0] * 15,
    ],
)
@pytest.mark.parametrize("scale", [True, False])
def test_no_finite_rewards_end_a_run(group: list[float], scale: bool) -> None:
    group_advantages(group, scale=scale)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=8))
def test_any_finite_rewards_give_advantages_or_none(group: list[float]) -> None:
    for scale in (True, False):
        group_advantages(group, scale=scale)
