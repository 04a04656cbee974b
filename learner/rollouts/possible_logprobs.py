"""Whether claimed logprobs can be those of sampled tokens, by probability alone, without I/O.

The run's engines sample the full distribution at one temperature, and report of each token its
probability p in just that distribution. Tokens of probability at most p are at most V of a
vocabulary of V, so one of them is sampled with probability at most V p, whatever the prompt,
the weights, the temperature and the tokens before. In other words u = min(1, V p) of a sampled
token is at most x with probability at most x. Two bounds on a completion of n tokens follow:

- one token (the union bound): some V p_i is at most x with probability at most n x;
- all together: -log u_i is no larger, in distribution, than an exponential variable, whatever the
  tokens before were; so their sum reaches s with no more probability than the sum of n independent
  ones does, exp(-s) (1 + s + s^2/2! + ... + s^(n-1)/(n-1)!). Where s > n - 1 the last summand is
  the largest, and each is at most (n-1)/s of the next: that bounds the sum by a geometric series.

The plain product of the u_i says less: of n tokens that each have u uniform, its logarithm is
about -n, so a bound on it would refuse long honest completions. With n = 1 both are the same.

A completion is impossible if either bound is under ``MAX_CHANCE``. What an honest engine samples
is refused about once in 10^12 completions at the most. What passes can still be a lie.
"""

from collections.abc import Sequence
from math import lgamma, log, log1p
from typing import Final

MAX_CHANCE: Final = 1e-12
"""An honest completion is called impossible with no more than twice this probability."""
_LOG_CHANCE: Final = log(MAX_CHANCE)


def least_logprob(num_tokens: int, vocab_size: int) -> float:
    """Return the least logprob that a token of a completion of ``num_tokens`` can have."""
    return _LOG_CHANCE - log(num_tokens * vocab_size)


def log_chance(logprobs: Sequence[float], vocab_size: int) -> float:
    """Return a bound on the log-probability of sampling tokens as unlikely together as these."""
    num_tokens = len(logprobs)
    log_vocab = log(vocab_size)
    surprise = sum(-min(0.0, log_vocab + logprob) for logprob in logprobs)
    if surprise <= num_tokens:
        return 0.0
    others = num_tokens - 1
    last = others * log(surprise) - lgamma(num_tokens) - surprise
    return min(0.0, last - log1p(-others / surprise))


def why_impossible(logprobs: Sequence[float], vocab_size: int) -> str:
    """Return why nobody samples tokens of these logprobs; empty if somebody may.

    Args:
        logprobs: finite, and not above 0 but for rounding; one at the least.
        vocab_size: how many tokens the policy chooses among.
    """
    floor = least_logprob(len(logprobs), vocab_size)
    least = min(logprobs)
    if least < floor:
        position = logprobs.index(least)
        return f"{least:.6g} at position {position}; no token under {floor:.4g} is sampled"
    chance = log_chance(logprobs, vocab_size)
    if chance < _LOG_CHANCE:
        return (
            f"{sum(logprobs):.6g} in all {len(logprobs)} tokens: tokens so unlikely are not "
            f"sampled (chance under 1e{chance / log(10):.0f})"
        )
    return ""
