"""From rewards to figures with intervals.

Letters in names are shapes: N prompts, K samples of each.

- ``mean_at_k``: the mean reward of K samples, averaged over prompts. Interval: percentile
  bootstrap over *prompts* (Efron and Tibshirani, An introduction to the bootstrap, 1993, chapter
  13), since samples of one prompt are not independent.
- ``pass_at_1``: the share of samples that are right, averaged over prompts: the estimate of Chen
  et al. (arXiv:2107.03374, equation 1) at k = 1. Interval as above.
- ``pass_at_k``: the share of prompts with at least one right sample among K.
- ``greedy_accuracy``: the share of prompts whose most likely completion is right. One trial a
  prompt, so the interval is Wilson's (J. Am. Stat. Assoc. 22, 1927, 209-212).

A completion is *right* if its reward is at least ``RIGHT``. Intervals are of 95 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RIGHT: Final = 1.0
NUM_RESAMPLES: Final = 10_000
_Z: Final = 1.959963984540054
_SEED: Final = 0
_AT_ONCE: Final = 1 << 22
"""Draws held at once."""


@dataclass(frozen=True, slots=True)
class Interval95:
    """A figure, and where it lies with 95 % confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What an evaluation found of one model."""

    num_prompts: int
    samples_per_prompt: int
    mean_at_k: Interval95
    pass_at_1: Interval95
    pass_at_k: Interval95
    greedy_accuracy: Interval95 | None


def figures(rewards_NK: Sequence[Sequence[float]], greedy_N: Sequence[float] | None) -> Figures:
    """Return all figures of one model.

    Args:
        rewards_NK: of the samples.
        greedy_N: of the most likely completions, if those were made.
    """
    table_NK = np.asarray(rewards_NK, np.float64)
    right_NK = (table_NK >= RIGHT).astype(np.float64)
    greedy = None
    if greedy_N is not None:
        num_right = int((np.asarray(greedy_N) >= RIGHT).sum())
        greedy = wilson(num_right, len(greedy_N))
    return Figures(
        num_prompts=table_NK.shape[0],
        samples_per_prompt=table_NK.shape[1],
        mean_at_k=bootstrap_mean(table_NK.mean(axis=1)),
        pass_at_1=bootstrap_mean(right_NK.mean(axis=1)),
        pass_at_k=wilson(int(right_NK.max(axis=1).sum()), table_NK.shape[0]),
        greedy_accuracy=greedy,
    )


def bootstrap_mean(values_N: Floats) -> Interval95:
    """Return the mean with its percentile bootstrap interval; the same for the same values."""
    means = _resampled_means(values_N)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval95(float(values_N.mean()), float(low), float(high))


def paired_difference(
    rewards_NK: Sequence[Sequence[float]], baseline_NK: Sequence[Sequence[float]]
) -> Interval95:
    """Return how much higher the mean reward is than a baseline's on the same prompts.

    Prompts are resampled in pairs, so that what makes some harder for both cancels out.
    """
    ours_N = np.asarray(rewards_NK, np.float64).mean(axis=1)
    theirs_N = np.asarray(baseline_NK, np.float64).mean(axis=1)
    if ours_N.shape != theirs_N.shape:
        raise ValueError(f"{ours_N.size} prompts against {theirs_N.size}: not the same")
    return bootstrap_mean(ours_N - theirs_N)


def wilson(num_right: int, num_trials: int) -> Interval95:
    """Return a share with Wilson's score interval."""
    share = num_right / num_trials
    scale = 1 + _Z**2 / num_trials
    center = (share + _Z**2 / (2 * num_trials)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / num_trials + _Z**2 / (4 * num_trials**2))
    return Interval95(share, max(0.0, center - half), min(1.0, center + half))


def _resampled_means(values_N: Floats) -> Floats:
    rng = np.random.default_rng(_SEED)
    num_values = len(values_N)
    at_once = max(1, _AT_ONCE // num_values)
    parts = []
    for start in range(0, NUM_RESAMPLES, at_once):
        count = min(at_once, NUM_RESAMPLES - start)
        parts.append(values_N[rng.integers(num_values, size=(count, num_values))].mean(axis=1))
    return np.concatenate(parts)
