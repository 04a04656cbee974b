"""Heartbeat and activation; specification: ``docs/specs/activation.md``.

A node calls the learner; the learner never dials a node. So a node behind a
home router needs no open port, and each heartbeat's answer carries what the
learner wants of it. A node sends one at once when its state or version changes.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from protocols import advert
from protocols.codec import Message
from protocols.manifest import Version
from protocols.reasons import Reason
from protocols.ticket import MAX_ADDRESSES, Address, RunName

PROTOCOL_ID: Final = "/echo2/heartbeat/1.4.0"
MAX_REQUEST_BYTES: Final = 32 * 1024
MAX_REPLY_BYTES: Final = 128 * 1024
MAX_NEIGHBOURS: Final = 24
"""About half as many are usual; fast uploaders, and those who serve the unreachable, have more."""
MAX_LINKS: Final = 32
MAX_REPORTS: Final = 16
MAX_TROUBLE_CHARS: Final = 200

PeerName = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
SessionId = Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
"""Made new at each start of a process, so that a restart under the same identity shows."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class NodeState(StrEnum):
    """Where a node is in its life; the transitions are in :mod:`protocols.lifecycle`."""

    JOINING = "joining"
    SYNCING = "syncing"
    STANDBY = "standby"
    ACTIVE = "active"
    DRAINING = "draining"
    LEFT = "left"
    PAUSED = "paused"
    """Takes no work for now: its owner wants the machine, or decided when it works."""


class Directive(StrEnum):
    """What the learner wants of a node."""

    STANDBY = "standby"
    ACTIVE = "active"
    FINISHED = "finished"
    """The run is over: leave."""


class PeerReport(Message, frozen=True):
    """What a node had to refuse from another peer since its last heartbeat."""

    peer_id: PeerName
    reason: Reason
    count: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class Dial(StrEnum):
    """What came of a node's own attempts to connect to a peer; who is dialled, is reachable."""

    UNTRIED = "untried"
    REACHED = "reached"
    FAILED = "failed"


class LinkReport(Message, frozen=True):
    """What a node knows of its link to one peer, since its process started."""

    peer_id: PeerName
    bytes_sent: Count
    """Bytes of weights and assets sent to it."""
    bytes_received: Count
    """Bytes of weights and assets from it that were verified."""
    dial: Dial
    """What came of the last attempt to connect to it: by dialling or, if that failed, a meeting."""


class TroubleKind(StrEnum):
    """What a node can't do."""

    ENGINE = "engine"
    """Its engine died, or does not start."""
    FETCH = "fetch"
    """It does not get the newest version."""
    APPLY = "apply"
    """Its engine does not take a version."""
    SAMPLE = "sample"
    """Its engine does not sample."""


class Trouble(Message, frozen=True):
    """Why a node does not do what it could."""

    kind: TroubleKind
    detail: Annotated[str, msgspec.Meta(max_length=MAX_TROUBLE_CHARS)]
    """The error, for a person to read."""


class Heartbeat(Message, frozen=True):
    """A node's report of itself. All of it is claims; the learner measures."""

    run_id: RunName
    session_id: SessionId
    advert: Annotated[bytes, msgspec.Meta(max_length=advert.MAX_BYTES)]
    """The node's sealed :class:`~protocols.advert.NodeAdvert`."""
    state: NodeState
    applied_version: Version | None
    """What its engine samples with now."""
    held_version: Version | None
    """The newest version it holds whole and verified."""
    num_rollouts_in_hand: Count
    num_engine_restarts: Count
    payload_bytes_sent: Count
    payload_bytes_received: Count
    receiving_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Seconds, since its process started, in which it received weights or assets."""
    reports: Annotated[tuple[PeerReport, ...], msgspec.Meta(max_length=MAX_REPORTS)] = ()
    links: Annotated[tuple[LinkReport, ...], msgspec.Meta(max_length=MAX_LINKS)] = ()
    """Its links; those first that moved most since they were last told of."""
    calibrated_tokens_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """What its engine sampled in a short trial; counts until its rollouts were measured."""
    trouble: Trouble | None = None
    """What keeps it from working now."""


class PeerAddresses(Message, frozen=True):
    """A peer and where it may be reached."""

    peer_id: PeerName
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)]


class HeartbeatReply(Message, frozen=True):
    """What the learner answers."""

    directive: Directive
    why: Annotated[str, msgspec.Meta(max_length=200)]
    """Why this directive, for the contributor to read."""
    learner_step: Version
    newest_version: Version
    next_heartbeat_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    neighbours: Annotated[tuple[PeerAddresses, ...], msgspec.Meta(max_length=MAX_NEIGHBOURS)]
    """Peers to exchange chunks with; each of them is given this node, too."""
    upload_bytes_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    """What this node can send, as measured; nil while that is not known."""
    warning: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Something that the contributor should see to."""
    num_trained: Count | None = None
    """Of this node's rollouts, those that went into an update; nil if that is not told."""
