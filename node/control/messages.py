"""What a node and its owner's commands say to each other; specification: ``docs/specs/control.md``.

Both ends are of one machine and one user. Requests and replies are frames of msgpack.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from protocols.codec import Message
from protocols.heartbeat import NodeState

MAX_REQUEST_BYTES: Final = 16 * 1024
MAX_REPLY_BYTES: Final = 1024 * 1024

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
Value = Annotated[str, msgspec.Meta(max_length=200)]
Why = Annotated[str, msgspec.Meta(max_length=200)]


class NodePhase(StrEnum):
    """What a node is doing now."""

    JOINING = "joining"
    """Looking for the learner."""
    WAITING = "waiting"
    """For the learner's first version, or for the engine to start."""
    DOWNLOADING = "downloading"
    LOADING = "loading"
    """A version into the engine."""
    STANDBY = "standby"
    """Ready; the learner wants no work of it now."""
    GENERATING = "generating"
    IDLE = "idle"
    """Wanted, and without a lease at the moment."""
    PAUSED = "paused"
    DRAINING = "draining"


# Requests.


class GetStatus(Message, frozen=True, tag="get_status"):
    """Ask what the node is doing."""


class PauseCommand(Message, frozen=True, tag="pause"):
    """Take no work until :class:`ResumeCommand`, or for some time."""

    for_s: Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)] | None = None
    why: Why = ""


class ResumeCommand(Message, frozen=True, tag="resume"):
    """End a pause that :class:`PauseCommand` began; other reasons for one stay."""


class DrainCommand(Message, frozen=True, tag="drain"):
    """Finish what is begun, hand back the rest, and end."""


class SetCommand(Message, frozen=True, tag="set"):
    """Change settings while the node runs: all of them, or none if one is wrong."""

    changes: Annotated[dict[Name, Value], msgspec.Meta(min_length=1, max_length=20)]


Request = GetStatus | PauseCommand | ResumeCommand | DrainCommand | SetCommand


# Replies.


class CommandDone(Message, frozen=True, tag="done"):
    """It is done, or begun; what that means in words."""

    what: str


class CommandRefused(Message, frozen=True, tag="refused"):
    """Nothing was done, and why."""

    why: str


class DownloadLine(Message, frozen=True):
    """How far a version's weights are."""

    version: int | None
    held_bytes: int
    total_bytes: int
    bytes_per_s: float
    """Since this download was begun or resumed."""
    eta_s: float | None


class VersionsLine(Message, frozen=True):
    """Which versions are where; None if there is none."""

    published: int | None
    """The newest that the learner is known to have published."""
    held: int | None
    applied: int | None
    learner_step: int
    num_behind: int | None
    """By how many optimizer steps the engine's version is behind the newest."""
    trouble: str = ""
    """Why the newest can't be fetched; empty if it can, or is here."""


class LearnerLine(Message, frozen=True):
    """The learner, as the node sees it."""

    peer_id: str
    is_connected: bool
    is_answering: bool
    silent_s: float | None
    """Since its last answer; None if it never gave one."""
    error: str
    """Why the last call had no answer."""
    directive: str
    why: str
    warning: str


class ContributionLine(Message, frozen=True):
    """What the machine has done for the run."""

    num_accepted: int
    num_overtaken: int
    """Late, and made by another node: no fault."""
    refused: dict[str, int]
    """By reason."""
    num_trained: int | None
    """As the learner tells; of all this node's sessions."""
    num_tokens: int
    """In accepted rollouts."""
    active_s: float
    """How long it was wanted and working."""
    usd_per_hour: float
    usd: float
    """Its price times that, in US dollars."""


class LinkLine(Message, frozen=True):
    """Weights moved."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    sent_bytes: int
    received_bytes: int
    up_cap_bytes_per_s: float | None
    down_cap_bytes_per_s: float | None
    num_peers: int
    """Connected now."""


class EngineLine(Message, frozen=True):
    """What samples."""

    kind: str
    device: str
    """Empty until it has started."""
    tokens_per_s: float | None
    """While it works; or of its trial, if it never has."""
    num_tokens: int
    num_sampling: int
    num_deaths: int
    last_death: str
    pids: tuple[int, ...]


class OwnerLine(Message, frozen=True):
    """What the owner has set."""

    paused: str
    """Why it is paused; empty if it is not."""
    until_unix_s: float | None
    """When that is expected to end."""
    settings: dict[str, str]
    """As ``set`` takes them."""
    disk_used_bytes: int | None
    disk_quota_bytes: int | None


class NodeSnapshot(Message, frozen=True, tag="status"):
    """One node, now."""

    run_id: str
    peer_id: str
    name: str
    state_dir: str
    pid: int
    software: str
    uptime_s: float
    phase: NodePhase
    doing: str
    """The phase in words, with numbers and the reason."""
    state: NodeState
    """As the learner is told."""
    num_rollouts_in_hand: int
    versions: VersionsLine
    download: DownloadLine | None
    learner: LearnerLine
    contribution: ContributionLine
    link: LinkLine
    engine: EngineLine
    owner: OwnerLine


Reply = CommandDone | CommandRefused | NodeSnapshot
