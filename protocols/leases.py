"""Leases: work handed out and handed back; specification: ``docs/specs/leases.md``.

The learner picks the prompts and the sampling seeds. A lease says from which
version on it may be generated, and up to which learner step it can be used.
"""

from typing import Annotated, Final

import msgspec

from protocols.codec import Message
from protocols.heartbeat import SessionId
from protocols.manifest import Version
from protocols.reasons import Reason
from protocols.remote_call import RemoteCall
from protocols.sampling import SamplingParams
from protocols.ticket import RunName

PROTOCOL_ID: Final = "/echo2/lease/1.1.0"
OLD_PROTOCOL_ID: Final = "/echo2/lease/1.0.0"
"""The same without ``max_version``: a node that asks by this one is never held to a version."""
MAX_REQUEST_BYTES: Final = 4096
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024
MAX_GROUPS: Final = 256
MAX_SAMPLES_PER_GROUP: Final = 256
MAX_PROMPT_TOKENS: Final = 131_072
MAX_WAIT_S: Final = 20.0
"""A request may be held this long when there is no work; then it is answered without."""

LeaseName = Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
Group = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
SampleIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_SAMPLES_PER_GROUP)]


class SampleSpec(Message, frozen=True):
    """One completion to make."""

    index: SampleIndex
    """Its place in the group."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class LeasedGroup(Message, frozen=True):
    """One prompt, and the completions wanted of it."""

    group_id: Group
    prompt_tokens: Annotated[bytes, msgspec.Meta(min_length=4, max_length=4 * MAX_PROMPT_TOKENS)]
    """Packed with :func:`protocols.packed.pack_tokens`."""
    samples: Annotated[
        tuple[SampleSpec, ...], msgspec.Meta(min_length=1, max_length=MAX_SAMPLES_PER_GROUP)
    ]


class Lease(Message, frozen=True, omit_defaults=True):
    """Work for one node."""

    lease_id: LeaseName
    min_version: Version
    """Sampling with an older version than this is refused."""
    deadline_step: Version
    """The last learner step whose update may use rollouts of ``min_version``."""
    groups: Annotated[tuple[LeasedGroup, ...], msgspec.Meta(min_length=1, max_length=MAX_GROUPS)]
    sampling: SamplingParams
    max_version: Version | None = None
    """Sampling with a newer version than this is refused, so the engine keeps the one it has until
    the lease is done; None takes any."""

    @property
    def num_completions(self) -> int:
        """How many completions the lease asks for."""
        return sum(len(group.samples) for group in self.groups)


class LeaseRequest(Message, frozen=True, tag="request"):
    """An active node asks for work."""

    run_id: RunName
    session_id: SessionId
    applied_version: Version
    max_completions: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)]


class LeaseReturn(Message, frozen=True, tag="return"):
    """A node gives back what it will not finish; its rollouts are leased to others."""

    run_id: RunName
    session_id: SessionId
    lease_id: LeaseName
    why: Annotated[str, msgspec.Meta(max_length=200)]


class LeaseReply(Message, frozen=True):
    """Work, or none and why not."""

    lease: Lease | None
    refusal: Reason | None
    """Set if the request itself was refused."""
    why: Annotated[str, msgspec.Meta(max_length=200)]
    learner_step: Version
    retry_after_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]


LeaseCall = LeaseRequest | LeaseReturn

CALL: Final[RemoteCall[LeaseRequest | LeaseReturn, LeaseReply]] = RemoteCall(
    protocol_id=PROTOCOL_ID,
    request=LeaseCall,
    reply=LeaseReply,
    max_request_bytes=MAX_REQUEST_BYTES,
    max_reply_bytes=MAX_REPLY_BYTES,
    timeout_s=15.0,
)
