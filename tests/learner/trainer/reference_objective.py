"""The objective of a whole batch, in plain loops and float64, from the papers.

Shares no code with the trainer. Symbols and equations are those of: DeepSeekMath
(arXiv:2402.03300) for GRPO, "Understanding R1-Zero-like training" (2503.20783) for Dr. GRPO,
DAPO (2503.14476), GSPO (2507.18071), "Batch size-invariance for policy optimization"
(2110.00641) for the decoupled objective, http://joschu.net/blog/kl-approx.html for k2 and k3,
DeepSeek-V3.2 (2512.02556) for the third and the off-policy mask, and dual-clip PPO (1912.09729).
"""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One of G: its reward, and its tokens' log-probabilities under each policy."""

    reward: float
    policy: list[float]
    prox: list[float]
    behaviour: list[float]
    reference: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The choices, all spelled out."""

    clip_low: float
    clip_high: float
    ratio: str
    norm: str
    max_length: int
    scaled: bool
    correction: str
    correction_level: str
    cap: float
    below: float
    above: float
    mask_level: str
    beta: float
    kl: str
    dual_clip: float
    off_policy: float
    max_drift: float


def loss(groups: list[list[Completion]], options: Options) -> float:
    """Return what is minimised."""
    completions = [(g, i) for g in groups for i in range(len(g))]
    num_tokens = sum(len(g[i].policy) for g, i in completions)
    total = 0.0
    for group, index in completions:
        completion = group[index]
        advantage = advantage_of(group, index, scaled=options.scaled)
        length = len(completion.policy)
        summed = 0.0
        for t in range(length):
            summed += token_loss(completion, t, advantage, options)
        if options.norm == "sequence":
            total += summed / length / len(completions)
        elif options.norm == "constant":
            total += summed / options.max_length / len(completions)
        else:
            total += summed / num_tokens
    return total


def advantage_of(group: list[Completion], index: int, *, scaled: bool) -> float:
    """Return the reward against the group's."""
    rewards = [completion.reward for completion in group]
    mean = sum(rewards) / len(rewards)
    difference = rewards[index] - mean
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    if deviation == 0:
        return 0.0
    return difference / deviation if scaled else difference


def token_loss(completion: Completion, t: int, advantage: float, options: Options) -> float:
    """Return token t's part."""
    old = completion.behaviour if options.correction == "coupled" else completion.prox
    ratio = ratio_of(completion.policy, old, t, options.ratio)
    clipped = ratio
    clipped = min(clipped, 1 + options.clip_high)
    clipped = max(clipped, 1 - options.clip_low)
    gain = min(ratio * advantage, clipped * advantage)
    if advantage < 0:  # Ye et al., arXiv:1912.09729, equation 5
        gain = max(gain, options.dual_clip * advantage)

    weight = 1.0
    if options.correction == "decoupled":
        weight = ratio_of(completion.prox, completion.behaviour, t, options.correction_level)
        weight = min(weight, options.cap)
    distance = ratio_of(completion.prox, completion.behaviour, t, options.mask_level)
    if distance < options.below or distance > options.above:
        weight = 0.0

    # DeepSeek-V3.2, equation 9, and what is far off either way.
    pairs = list(zip(completion.behaviour, completion.policy, strict=True))
    divergence = sum(b - p for b, p in pairs) / len(pairs)
    if advantage < 0 and divergence > options.off_policy:
        weight = 0.0
    if sum(abs(p - b) for b, p in pairs) / len(pairs) > options.max_drift:
        weight = 0.0

    penalty = 0.0
    if options.beta:
        log_r = completion.reference[t] - completion.policy[t]
        penalty = log_r**2 / 2 if options.kl == "k2" else math.exp(log_r) - 1 - log_r
        if options.kl == "k3_unbiased":
            penalty *= ratio
    return -weight * gain + options.beta * penalty


def ratio_of(numerator: list[float], denominator: list[float], t: int, level: str) -> float:
    """Return the ratio of probabilities of a token, or of its sequence."""
    if level == "token":
        return math.exp(numerator[t]) / math.exp(denominator[t])
    product = 1.0
    for one, other in zip(numerator, denominator, strict=True):
        product *= math.exp(one) / math.exp(other)
    if level == "geometric":
        product **= 1 / len(numerator)
    return product
