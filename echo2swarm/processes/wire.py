"""What parent and child say to each other: calls, that one is not wanted any more, answers."""

from enum import StrEnum
from typing import Final

import msgspec

from protocols.codec import Message

MAX_FRAME_BYTES: Final = 2**32 - 1
"""What a frame's length can say: both ends are ours. A batch may have many million tokens."""
SOCKET_FD_VARIABLE: Final = "ECHO2_CHILD_FD"
TRACEBACKS_VARIABLE: Final = "ECHO2_CHILD_TRACEBACKS"
"""Not empty if the child writes a traceback of errors that are to be expected, too."""


class FrameKind(StrEnum):
    """What a frame from the child is."""

    RESULT = "result"
    ERROR = "error"
    PROGRESS = "progress"


class Call(Message, frozen=True, tag="call"):
    """Parent to child."""

    call_id: int
    body: msgspec.Raw


class Cancel(Message, frozen=True, tag="cancel"):
    """Parent to child: nobody waits for the answer to a call any more.

    A child may take no notice; else it ends what it does for that call, and sends no answer.
    """

    call_id: int


FromParent = Call | Cancel


class ChildReply(Message, frozen=True):
    """Child to parent; any number of PROGRESS, then one RESULT or ERROR."""

    call_id: int
    kind: FrameKind
    body: msgspec.Raw


class CallProgress(Message, frozen=True):
    """How far a long call has come."""

    what: str
    done: float
    total: float


class Failure(Message, frozen=True):
    """Why a call failed; the child lives on."""

    error: str
    message: str
