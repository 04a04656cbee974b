"""What a completion that has no reward is refused for."""

from learner.ledger.refusal import Refusal
from learner.scoring.messages import Reward, ScoreFault
from protocols.reasons import Reason


def refusal_of(reward: Reward) -> Refusal:
    """Return why a completion without a reward is refused."""
    reason = Reason.RATE_LIMITED if reward.fault is ScoreFault.WAITING else Reason.UNSCORABLE
    return Refusal(reason, reward.error or "it can't be scored")
