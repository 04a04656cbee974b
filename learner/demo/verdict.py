"""Whether a run has learned: the demo's pass or fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from echo2swarm.report.run_record import WINDOW_STEPS, reward_gain

MIN_GAIN: Final = 0.2
"""By how much the mean reward must have risen, of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningVerdict:
    """The answer, and why."""

    has_learned: bool
    why: str


def judge_learning(rewards: Sequence[float], *, num_steps: int) -> LearningVerdict:
    """Compare the first and the last ten steps of a run that was to have ``num_steps``."""
    if len(rewards) < num_steps:
        return LearningVerdict(
            has_learned=False, why=f"only {len(rewards)} of {num_steps} steps were done"
        )
    gain = reward_gain(rewards)
    if gain is None:
        return LearningVerdict(has_learned=False, why="too few steps to compare")
    first, last = gain
    window = min(WINDOW_STEPS, len(rewards) // 2)
    # Means of exact fractions differ in the last bit; a gain of exactly the mark is met.
    has_learned = last - first >= MIN_GAIN - 1e-9
    return LearningVerdict(
        has_learned=has_learned,
        why=(
            f"mean reward of the first {window} steps {first:.3f}, of the last {window} "
            f"{last:.3f}: {last - first:+.3f}, "
            f"{'at least' if has_learned else 'less than'} {MIN_GAIN:g}"
        ),
    )
