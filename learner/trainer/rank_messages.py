"""What rank 0 of a trainer tells its other processes; see ``docs/specs/children.md``."""

from learner.trainer.messages import Start, Update, WriteWeights
from protocols.codec import Message


class JoinRanks(Message, frozen=True, tag="join_ranks"):
    """Become one of a trainer's processes, and start as rank 0 does. First call."""

    rank: int
    """Its number, from 1."""
    size: int
    """How many processes there are, rank 0 included."""
    port: int
    """Where on this machine they find each other."""
    start: Start
    """What the learner called."""


class CopyState(Message, frozen=True, tag="copy_state"):
    """Copy what this process holds of weights and optimizer in memory."""

    number: int
    """For :class:`WriteCopy`."""


class WriteCopy(Message, frozen=True, tag="write_copy"):
    """Write such a copy, beside other calls, and drop it."""

    number: int
    """Of the copy."""
    folder: str
    """Exists; other processes write there, too."""


class CallDone(Message, frozen=True):
    """The call is done."""


RankCall = JoinRanks | Update | WriteWeights | CopyState | WriteCopy
