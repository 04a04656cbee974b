"""Why something was not accepted, as it is recorded and answered."""

from dataclasses import dataclass

from learner.scoring.messages import Reward, ScoreFault
from protocols.reasons import Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not accepted."""

    reason: Reason
    detail: str


def refusal_of(reward: Reward) -> Refusal:
    """Return why a completion without a reward is refused."""
    reason = Reason.RATE_LIMITED if reward.fault is ScoreFault.WAITING else Reason.UNSCORABLE
    return Refusal(reason, reward.error or "it can't be scored")
