"""Luck that follows from a seed, and spreads given as standard deviation over mean."""

import hashlib
from math import exp, log, sqrt
from statistics import NormalDist
from typing import Final

from echo2swarm.scheduling.workload import LeasePart
from echo2swarm.simulate.tables import AnswersTable

_NORMAL: Final = NormalDist()
_MAX_Z: Final = 8.0


def sigma_of(cv: float) -> float:
    """Return the sigma of a log-normal whose standard deviation is ``cv`` times its mean."""
    return sqrt(log(1 + cv * cv))


def lognormal_factor(sigma: float, z: float) -> float:
    """Return a factor of mean 1, log-normal, for a standard normal ``z``."""
    return exp(sigma * z - sigma * sigma / 2)


def normal_of(bits: int, num_bits: int = 63) -> float:
    """Return the standard normal that belongs to a uniform integer."""
    z = _NORMAL.inv_cdf((bits + 0.5) / 2**num_bits)
    return max(-_MAX_Z, min(_MAX_Z, z))


class Answers:
    """Lengths of answers: they follow from prompt and sampling seed, as with a real model."""

    def __init__(self, table: AnswersTable, *, seed: int) -> None:
        self._table = table
        self._seed = seed
        variance = sigma_of(table.cv) ** 2
        self._prompt_sigma = sqrt(table.prompt_share * variance)
        self._own_sigma = sqrt((1 - table.prompt_share) * variance)

    def of_prompt(self, group_id: int) -> float:
        """Return the factor that all answers to one prompt have in common."""
        if not self._prompt_sigma:
            return 1.0
        text = f"{self._seed}/prompt/{group_id}".encode()
        bits = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
        return lognormal_factor(self._prompt_sigma, normal_of(bits))

    def of_part(self, part: LeasePart) -> tuple[float, ...]:
        """Return the lengths of all answers of a part, in order."""
        return tuple(
            self.tokens(factor, sample.seed)
            for group in part.groups
            for factor in (self.of_prompt(group.group_id),)
            for sample in group.samples
        )

    def tokens(self, prompt_factor: float, sample_seed: int) -> float:
        """Return the length of one answer."""
        own = lognormal_factor(self._own_sigma, normal_of(sample_seed)) if self._own_sigma else 1.0
        tokens = self._table.mean_tokens * prompt_factor * own
        return min(self._table.max_tokens, max(1.0, tokens))
