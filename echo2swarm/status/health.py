"""Whether a run is well, by what its learner last said of itself; pure."""

from typing import Final

from echo2swarm.system.rates import LearnerPhase
from protocols.status import StatusReply

STALE_AFTER_S: Final = 15.0
"""A learner writes its status each second; one that has not for so long is not running."""
ENDED_PHASES: Final = (LearnerPhase.FINISHED, LearnerPhase.STOPPED, LearnerPhase.FAILED)
"""After which nothing more will come of it, unless it is resumed."""


def is_healthy(status: StatusReply, *, age_s: float) -> bool:
    """Return whether the run goes on, or has ended well."""
    if status.phase == LearnerPhase.FINISHED:
        return True
    return status.phase not in ENDED_PHASES and age_s <= STALE_AFTER_S
