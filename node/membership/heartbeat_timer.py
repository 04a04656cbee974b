"""When to send the next heartbeat, and when the learner counts as lost; without I/O."""

from enum import Enum
from math import inf
from typing import Final

MIN_GAP_S: Final = 0.1
"""Between two heartbeats, however often the state changes."""
LOST_AFTER_FAILURES: Final = 3
"""In a row. One call may fail because a connection broke; the next makes a new one."""


class Contact(Enum):
    """What the last heartbeat told about the learner."""

    SAME = "same"
    FOUND = "found"
    LOST = "lost"


class HeartbeatPacer:
    """Decides when to beat.

    At once when something has changed, else when the learner wished; after failures
    at growing intervals. Starts without a learner: the first answer finds it.
    """

    def __init__(self) -> None:
        self._due_s = -inf
        self._last_sent_s = -inf
        self._is_sending = False
        self._is_changed = False
        self._num_failures = 0
        self._has_learner = False

    @property
    def has_learner(self) -> bool:
        """Whether the learner answered lately."""
        return self._has_learner

    @property
    def is_failing(self) -> bool:
        """Whether the last call had no answer."""
        return self._num_failures > 0

    @property
    def due_s(self) -> float:
        """When to beat next; ``inf`` while one is on its way."""
        return inf if self._is_sending else self._due_s

    @property
    def is_stuck(self) -> bool:
        """Whether so many calls failed, since the last answer or renewal, that a new try is due."""
        return self._num_failures > 0 and self._num_failures % LOST_AFTER_FAILURES == 0

    def changed(self) -> None:
        """Note that the learner should hear from us soon."""
        self._is_changed = True
        self._due_s = self._last_sent_s + MIN_GAP_S

    def sent(self, now_s: float) -> None:
        """Note that a heartbeat is on its way; it carries all changes up to now."""
        self._is_sending = True
        self._is_changed = False
        self._last_sent_s = now_s

    def answered(self, now_s: float, *, next_heartbeat_s: float) -> Contact:
        """Note the learner's answer, and when it wants to hear from us again."""
        self._is_sending = False
        self._num_failures = 0
        if not self._is_changed:
            self._due_s = now_s + next_heartbeat_s
        if self._has_learner:
            return Contact.SAME
        self._has_learner = True
        return Contact.FOUND

    def failed(self, now_s: float, *, retry_s: float) -> Contact:
        """Note that there was no answer; ``retry_s`` is how long to wait at least."""
        self._is_sending = False
        self._num_failures += 1
        # A change is no reason to call more often on one who does not answer.
        self._due_s = now_s + retry_s
        if self._has_learner and self._num_failures >= LOST_AFTER_FAILURES:
            self._has_learner = False
            return Contact.LOST
        return Contact.SAME
