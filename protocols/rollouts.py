"""Rollout submission; specification: ``docs/specs/rollouts.md``.

Tokens and logprobs travel packed. The learner scores completions itself: there
is no reward here.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from protocols.codec import Message
from protocols.heartbeat import SessionId
from protocols.leases import Group, LeaseName, SampleIndex
from protocols.manifest import Version
from protocols.reasons import Reason
from protocols.remote_call import RemoteCall
from protocols.sampling import MAX_NEW_TOKENS
from protocols.ticket import RunName

PROTOCOL_ID: Final = "/echo2/rollouts/1.2.0"
MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024
"""Enough for the longest verdict on each of ``MAX_ROLLOUTS``."""
MAX_ROLLOUTS: Final = 4096

PackedArray = Annotated[bytes, msgspec.Meta(max_length=4 * MAX_NEW_TOKENS)]


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """A stop token was sampled; it is the last of ``tokens``."""
    LENGTH = "length"
    """``max_new_tokens`` were sampled, and none was a stop token."""


class Rollout(Message, frozen=True):
    """One completion as it was sampled."""

    group_id: Group
    sample_index: SampleIndex
    oldest_version: Version
    """The oldest version that sampled any of its tokens: the one staleness counts from."""
    newest_version: Version
    tokens: PackedArray
    """Sampled token ids, packed; the prompt is not repeated."""
    logprobs: PackedArray
    """Of each sampled token under the full distribution at the run's temperature, packed."""
    finish_reason: FinishReason


class RolloutSubmission(Message, frozen=True):
    """Finished work of one lease, all of it or a part."""

    run_id: RunName
    session_id: SessionId
    lease_id: LeaseName
    rollouts: Annotated[tuple[Rollout, ...], msgspec.Meta(min_length=1, max_length=MAX_ROLLOUTS)]
    generated_in_s: Annotated[float, msgspec.Meta(ge=0, le=1e7)]


class RolloutVerdict(Message, frozen=True):
    """What the learner says of one submitted rollout."""

    group_id: Group
    sample_index: SampleIndex
    refusal: Reason | None
    """None if accepted."""
    detail: Annotated[str, msgspec.Meta(max_length=200)] = ""


class SubmissionReply(Message, frozen=True):
    """Verdicts in the order of the submission."""

    verdicts: Annotated[tuple[RolloutVerdict, ...], msgspec.Meta(max_length=MAX_ROLLOUTS)]
    refusal: Reason | None
    """Set if the submission as a whole was refused; then there are no verdicts."""
    detail: Annotated[str, msgspec.Meta(max_length=200)]
    learner_step: Version


CALL: Final[RemoteCall[RolloutSubmission, SubmissionReply]] = RemoteCall(
    protocol_id=PROTOCOL_ID,
    request=RolloutSubmission,
    reply=SubmissionReply,
    max_request_bytes=MAX_REQUEST_BYTES,
    max_reply_bytes=MAX_REPLY_BYTES,
    timeout_s=60.0,
)
"""The learner scores rollouts before it answers."""
