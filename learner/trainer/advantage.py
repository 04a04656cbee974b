"""What a completion's reward and length make its tokens count; pure, and without torch.

Letters in names are shapes: G completions of one prompt, S samples of a batch.
"""

import math
from collections.abc import Sequence

from learner.config.presets import LengthNorm


def group_advantages(rewards_G: Sequence[float], *, scale: bool) -> list[float] | None:
    """Return each completion's advantage over its group, or None where all are worth the same.

    Also None where a double can't tell their differences: whatever the ledger of an older version
    holds, an update can be made of it.

    Args:
        rewards_G: finite.
        scale: divide by the standard deviation (GRPO), or don't (Dr. GRPO).
    """
    if len(set(rewards_G)) < 2:
        return None
    try:
        mean = math.fsum(rewards_G) / len(rewards_G)
        centred = [reward - mean for reward in rewards_G]
        if not scale:
            return centred
        deviation = math.hypot(*centred) / math.sqrt(len(centred))
        return [value / deviation for value in centred]
    except (OverflowError, ZeroDivisionError):
        return None


def length_weights(
    lengths_S: Sequence[int],
    norm: LengthNorm,
    *,
    constant: int,
) -> list[float]:
    """Return the weight of each sample's tokens in the loss, which is a weighted sum of them.

    Args:
        lengths_S: completion tokens of *all* samples of the batch, also of those whose gradient
            is zero: they count in the average.
        norm: "token": the mean over all tokens (DAPO); "sequence": the mean over samples of
            the mean over tokens (GRPO); "constant": the mean over samples of the sum over
            tokens, divided by a constant (Dr. GRPO).
        constant: the length for "constant".
    """
    num_samples = len(lengths_S)
    match norm:
        case "token":
            num_tokens = max(1, sum(lengths_S))
            return [1 / num_tokens for _ in lengths_S]
        case "sequence":
            return [1 / (num_samples * max(1, length)) for length in lengths_S]
        case "constant":
            return [1 / (num_samples * constant) for _ in lengths_S]
