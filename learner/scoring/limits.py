"""How long scoring may take, and how many processes do it."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerLimits:
    """How long the scorer may take before it counts as lost."""

    open_s: float = 300.0
    """Importing and reading data can be slow."""
    draw_s: float = 120.0
    score_s: float = 2.0
    """For one completion; the scorer itself stops what takes longer, where that is possible."""
    grace_s: float = 10.0
    """Beyond ``score_s`` without a sign of life: a busy machine is not a hanging verifier."""
    busy_grace_s: float = 1.0
    """Beyond ``score_s`` of computing, where the system tells how long a process computed."""
    reopen_waits_s: tuple[float, ...] = (0.0, 1.0, 5.0)
    """Pauses before the attempts to start it anew; after the last it is given up, if no other
    process is there."""
    reopen_later_s: float = 30.0
    """Else so long later it is tried again."""


def num_scorers(wanted: object) -> int:
    """Return how many processes ``task.num_scorers`` means; each has the data in memory."""
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return max(1, wanted)
    return max(2, min(4, (os.cpu_count() or 1) // 4))
