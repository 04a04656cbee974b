"""The node's contact with its learner: whether it answers, and whether it should hear from us."""

from echo2swarm.system.change_event import ChangeEvent
from node.membership.heartbeat_timer import HeartbeatPacer


class LearnerContact:
    """Shared by the heartbeats, which keep it up to date, and all that has news for the learner."""

    def __init__(self) -> None:
        self.pacer = HeartbeatPacer()
        self.changes = ChangeEvent()
        """Rung when a heartbeat may be due earlier."""

    @property
    def has_learner(self) -> bool:
        """Whether the learner answered lately."""
        return self.pacer.has_learner

    @property
    def is_failing(self) -> bool:
        """Whether the learner did not answer the last call."""
        return self.pacer.is_failing

    def announce(self) -> None:
        """Have a heartbeat sent now: something has changed, or the learner seems not to know us."""
        self.pacer.changed()
        self.changes.notify()
