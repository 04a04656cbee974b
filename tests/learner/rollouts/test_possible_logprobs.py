"""Logprobs that nobody's tokens have are refused; whatever is sampled honestly passes."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from learner.rollouts.possible_logprobs import MAX_CHANCE, least_logprob, log_chance, why_impossible


def sampled(rng: random.Random, weights: list[float], num_tokens: int) -> list[float]:
    """Sample from one distribution, and tell the logprobs as an engine does."""
    total = sum(weights)
    chosen = rng.choices(range(len(weights)), weights, k=num_tokens)
    return [math.log(weights[token] / total) for token in chosen]


@settings(deadline=None)
@given(
    st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=64),
    st.integers(1, 500),
    st.integers(0, 2**32),
)
def test_what_is_sampled_passes_whatever_the_distribution(
    weights: list[float], num_tokens: int, seed: int
) -> None:
    # Not hypothesis' own random numbers: it would search for those that break the bound.
    logprobs = sampled(random.Random(seed), weights, num_tokens)

    assert not why_impossible(logprobs, len(weights))


@pytest.mark.parametrize("num_tokens", [1, 100, 20_000])
def test_completions_of_the_least_likely_distribution_pass_at_any_length(num_tokens: int) -> None:
    rng = random.Random(num_tokens)
    # u = V p is uniform: as unlikely as sampled tokens can be.
    logprobs = [math.log(1 - rng.random()) - math.log(1000) for _ in range(num_tokens)]

    assert not why_impossible(logprobs, 1000)


@given(st.integers(1, 2000), st.floats(1.0, 60.0))
def test_the_bound_is_never_under_the_probability_that_it_bounds(
    num_tokens: int, factor: float
) -> None:
    surprise = num_tokens * factor
    logprobs = [-surprise / num_tokens - math.log(50)] * num_tokens

    bound = log_chance(logprobs, 50)

    assert bound >= stats.gamma(num_tokens).logsf(surprise) - 1e-6


@pytest.mark.parametrize("logprob", [-1e30, -1000.0, -20.0])
@pytest.mark.parametrize("num_tokens", [4, 64, 4096])
def test_one_impossible_value_for_all_tokens_is_refused(logprob: float, num_tokens: int) -> None:
    assert why_impossible([logprob] * num_tokens, 16)


def test_one_impossible_token_among_many_is_refused_and_named() -> None:
    why = why_impossible([-0.1] * 5 + [-60.0] + [-0.1] * 1000, 150_000)

    assert "-60 at position 5" in why


def test_a_single_token_is_refused_where_its_chance_is_under_the_bound() -> None:
    floor = least_logprob(1, 1000)

    assert math.exp(floor) * 1000 == pytest.approx(MAX_CHANCE)
    assert why_impossible([floor - 0.01], 1000)
    assert not why_impossible([floor + 0.01], 1000)
