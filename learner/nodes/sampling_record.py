"""Whether a node samples its rollouts from the policy, as what the trainer recomputes tells.

Pure: figures of updates in, a verdict out. Two things are held against a node:

*Evidence.* Of each completion, the trainer tells log q - log b: b is the probability that the node
claims for its tokens, and q that under a flattened, and a sharpened, copy of its policy. Whatever
distribution a node samples from, if its claims are true then E[q / b] is at most 1, at any
staleness and for any q that was fixed before; so the product over its completions grows beyond x
with a probability of at most 1 / x (Ville's inequality). It grows for who hands in unlikely tokens
too often, for who hands in likely ones only, and for who claims less than the truth. The sum of
logarithms begins anew whenever it is under 0, since a node may turn bad late; an honest one then
comes to ``MAX_EVIDENCE`` no more than twice in exp(``MAX_EVIDENCE``) updates.

*What was left out*, for claims too far from what was recomputed, counts where it is much more often
than with others: a learning rate or staleness that is too large makes that of all nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, log
from typing import Final

from learner.training.messages import SampledBy

MAX_EVIDENCE: Final = log(1e6)
MIN_LEFT_OUT: Final = 16
"""Rollouts of a node that were left out, before it is held against it."""
MIN_LEFT_OUT_SHARE: Final = 0.5
MAX_OTHERS_SHARE: Final = 0.2
"""Where more than this share of the others' rollouts is left out, it is not the node's fault."""
_KEPT_ROLLOUTS: Final = 256
"""Shares are of about so many rollouts."""


@dataclass(slots=True)
class SamplingRecord:
    """One node's."""

    num_left_out: int = 0
    """Rollouts that the trainer left out, ever."""
    recent_rollouts: float = 0.0
    recent_left_out: float = 0.0
    unlikely_evidence: float = 0.0
    likely_evidence: float = 0.0

    @property
    def evidence(self) -> float:
        """The stronger one."""
        return max(self.unlikely_evidence, self.likely_evidence)

    def add(self, found: SampledBy) -> None:
        """Take in what one update told."""
        self.num_left_out += found.num_left_out
        keep = 0.5 ** (found.num_rollouts / _KEPT_ROLLOUTS)
        self.recent_rollouts = self.recent_rollouts * keep + found.num_rollouts
        self.recent_left_out = self.recent_left_out * keep + found.num_left_out
        if isfinite(found.unlikely_evidence) and isfinite(found.likely_evidence):
            self.unlikely_evidence = max(0.0, self.unlikely_evidence) + found.unlikely_evidence
            self.likely_evidence = max(0.0, self.likely_evidence) + found.likely_evidence

    def forgive(self) -> None:
        """Begin anew, all but the count."""
        self.recent_rollouts = self.recent_left_out = 0.0
        self.unlikely_evidence = self.likely_evidence = 0.0

    def why_not_sampled(self, others: Iterable["SamplingRecord"]) -> str:
        """Return why these rollouts are not what the policy samples; empty if they may be."""
        if self.evidence > MAX_EVIDENCE:
            return (
                "its tokens are not sampled from the policy with the logprobs it tells "
                f"(chance under 1e-{self.evidence / log(10):.0f})"
            )
        if self.recent_left_out < MIN_LEFT_OUT:
            return ""
        share = self.recent_left_out / self.recent_rollouts
        rest = [record for record in others if record is not self]
        others_share = sum(r.recent_left_out for r in rest) / max(
            1.0, sum(r.recent_rollouts for r in rest)
        )
        if share < MIN_LEFT_OUT_SHARE or others_share > MAX_OTHERS_SHARE:
            return ""
        return (
            f"its logprobs are far from those recomputed in {share:.0%} of its rollouts, "
            f"against {others_share:.0%} of the others'"
        )
