"""The state of a run on one screen; specification: ``docs/specs/status.md``.

The same message answers ``swarm status TICKET`` over the network and lies, as
JSON, in the run directory for ``swarm status --run DIR``.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from protocols.activation import Count, NodeState, PeerName, Trouble
from protocols.codec import Message, encode
from protocols.errors import LocalProtocolError
from protocols.manifest import Version
from protocols.reasons import Reason
from protocols.ticket import RunName

PROTOCOL_ID: Final = "/echo2/status/1.6.0"
MAX_REQUEST_BYTES: Final = 256
MAX_REPLY_BYTES: Final = 2 * 1024 * 1024
MAX_NODES: Final = 512
"""More are left out, those first that one would miss least."""
_MAX_SEEN_AT_BYTES: Final = 300
"""More than the longest ``seen_at`` takes."""
_UNBOUNDED: Final = 2**40

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Reachability(StrEnum):
    """Whether others can dial a node, as their attempts show."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class StatusRequest(Message, frozen=True):
    """Ask for the state of a run."""

    run_id: RunName


class ReasonCount(Message, frozen=True):
    """How often something was refused for one reason."""

    reason: Reason
    count: Count


class NodeStatus(Message, frozen=True):
    """One node, as the learner knows it."""

    peer_id: PeerName
    name: str
    engine: str
    device: str
    state: NodeState
    is_connected: bool
    """Whether its last heartbeat is recent."""
    seconds_since_heartbeat: float
    directive: str
    why: str
    applied_version: Version | None
    broadcast_s: float | None
    """From publish to applied, the last version it applied."""
    rollouts_per_s: float
    """Accepted rollouts, over the last minutes."""
    num_in_flight: Count
    num_accepted: Count
    num_trained: Count
    refusals: tuple[ReasonCount, ...]
    """Of its rollouts, and what others refused from it."""
    last_refusal: str
    usd_per_hour: float
    num_engine_restarts: Count
    payload_bytes_sent: Count
    payload_bytes_received: Count
    upload_bytes_per_s: float | None = None
    """What it can send, measured from what its peers received."""
    download_bytes_per_s: float | None = None
    """What it can receive, measured."""
    reachability: Reachability = Reachability.UNKNOWN
    num_neighbours: Count = 0
    """How many peers it was given to exchange chunks with."""
    warning: str = ""
    """Something to see to: it is shut out, or two processes share its identity."""
    speed_rollouts_per_s: float | None = None
    """What it does while it has work: accepted rollouts; None while nothing is known."""
    speed_std: float = 0.0
    """How far off that may be."""
    num_speed_samples: Count = 0
    """Results that it rests on."""
    is_speed_prior: bool = False
    """Whether it rests on the node's own trial, before anything was measured."""
    trouble: Trouble | None = None
    """What it says keeps it from working now."""
    num_left_out: Count = 0
    """Its rollouts that the trainer left out, as their logprobs were far from those recomputed."""


class StalenessCount(Message, frozen=True):
    """How many trained rollouts had this staleness."""

    staleness: Count
    num_rollouts: Count


class Quantity(Message, frozen=True):
    """Something that varies, as measured lately."""

    p50: float
    p95: float
    num_samples: Count
    """How many measurements it rests on."""
    is_prior: bool = False
    """Assumed, or tried out before there was real work."""


class Outlook(Message, frozen=True):
    """What the capacity model says of the run, and from what."""

    train: Quantity | None
    """Seconds for one update."""
    broadcast: Quantity | None
    """Seconds from publish to applied."""
    rollout: Quantity | None
    """Seconds from a lease to its last result."""
    capacity_rollouts_per_s: float
    """What the active nodes make when they work all the time."""
    required_rollouts_per_s: float | None
    """What just keeps the learner busy; nil if it is unknown, or none would."""
    step_s: float | None
    """Seconds from one update to the next, predicted."""
    busy_share: Share | None
    """The share of its time that the learner trains, predicted."""
    binds: str
    """What sets its pace: learner, supply, latency; empty if that is unknown."""
    min_staleness: Count | None
    """The smallest bound with which the learner never waits and nothing is wasted."""
    refused_share: Share | None
    """Of the rollouts submitted lately."""
    dropped_share: Share | None
    """Of the rollouts accepted lately, those that no update could use."""
    usd_per_hour: float
    """Of the active nodes."""
    usd_per_million_tokens: float | None
    """What the active nodes cost per million trained tokens, lately."""


class Estimate(Message, frozen=True):
    """A figure, and where it lies with 95 % confidence."""

    value: float
    """The figure."""
    low: float
    """From where on."""
    high: float
    """Up to where."""


class EvaluationPoint(Message, frozen=True):
    """What an evaluation of one version found."""

    version: Version
    samples_per_prompt: Count
    """The k of mean@k."""
    num_prompts: Count
    """Held-out prompts that count: those that have all their samples."""
    num_prompts_wanted: Count
    """Held-out prompts that were asked."""
    mean_at_k: Estimate
    """Mean reward of the samples, averaged over prompts."""
    pass_at_1: Estimate
    """Share of samples that are right, averaged over prompts."""


class EvaluationStatus(Message, frozen=True):
    """The evaluations of a run on held-out prompts."""

    newest: EvaluationPoint | None
    """The newest one that found something."""
    running_version: Version | None
    """What is being evaluated now."""
    num_done: Count
    """Samples judged of it."""
    num_wanted: Count
    """Samples that it needs."""


class StatusReply(Message, frozen=True):
    """One run, as its learner knows it."""

    run_id: RunName
    phase: str
    """What the learner is doing: starting, waiting, training, publishing, checkpointing,
    evaluating, finished, stopped, failed."""
    at_unix_s: float
    uptime_s: float
    learner_step: Version
    num_steps: Count
    """How many steps the run is to have."""
    newest_version: Version
    max_staleness: Count
    publish_every: Count
    rollouts_per_step: Count
    group_size: Count
    window_s: float
    """The shares and rates below are over at most this long."""
    busy_share: Share
    bubble_share: Share
    """Waiting for rollouts."""
    train_s: float | None
    """Of one update, median over the window."""
    broadcast_s: float | None
    """Publish to applied, p95 over nodes and the window."""
    needed_rollouts_per_s: float | None
    supplied_rollouts_per_s: float
    num_buffered: Count
    num_in_flight: Count
    staleness: tuple[StalenessCount, ...]
    """From the ledger: every trained rollout of the run."""
    reward_mean: float | None
    """Of the newest batch."""
    refusals: tuple[ReasonCount, ...]
    worst_heartbeat_delay_s: float
    """The longest the learner's event loop was late, over the window."""
    payload_bytes_sent: Count
    """Weights and assets that the learner itself sent."""
    advice: str
    nodes: Annotated[tuple[NodeStatus, ...], msgspec.Meta(max_length=MAX_NODES)]
    expected_broadcast_s: float | None = None
    """The least time in which the measured links can bring the newest version to all nodes."""
    upload_bytes_per_s: float | None = None
    """What the learner can send, measured from what nodes received."""
    outlook: Outlook | None = None
    """What the capacity model says."""
    evaluation: EvaluationStatus | None = None
    """What evaluations on held-out prompts say; nil if there are none."""
    num_nodes_left_out: Count = 0
    """Nodes of the run for which there was no room in ``nodes``."""
    seen_at: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Where the learner sees whom it answers, as a multiaddress; empty in a file."""


class EncodedStatus:
    """A status, encoded once for everybody who asks; only ``seen_at`` differs.

    Where it is too long for a reply, the last of its nodes are left out.
    """

    def __init__(self, status: StatusReply) -> None:
        blank = encode(msgspec.structs.replace(status, seen_at=""), max_bytes=_UNBOUNDED)
        while len(blank) > MAX_REPLY_BYTES - _MAX_SEEN_AT_BYTES:
            if not status.nodes:
                raise LocalProtocolError(f"a status of {len(blank)} bytes without any node")
            status = _without_half(status)
            blank = encode(msgspec.structs.replace(status, seen_at=""), max_bytes=_UNBOUNDED)
        # It is the last field of its map, so that nothing comes after it.
        self._before_seen_at = blank.removesuffix(msgspec.msgpack.encode(""))

    def seen_from(self, seen_at: str) -> bytes:
        """Return the reply to somebody whom the learner sees at ``seen_at``."""
        return self._before_seen_at + msgspec.msgpack.encode(seen_at)


def _without_half(status: StatusReply) -> StatusReply:
    num_kept = len(status.nodes) // 2
    return msgspec.structs.replace(
        status,
        nodes=status.nodes[:num_kept],
        num_nodes_left_out=status.num_nodes_left_out + len(status.nodes) - num_kept,
    )
