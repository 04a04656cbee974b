"""What a node is doing, in one picture: for its owner's ``status``, and for its own progress line.

Reads the node's parts, changes nothing.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from echo2swarm.network.base import Network
from echo2swarm.network.discovery import Discovery
from echo2swarm.text.format import format_bytes, format_seconds
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.rate_limit import DownloadBudget, UploadBudget
from echo2swarm.weights.transfer.traffic import Traffic
from node.control.messages import (
    ContributionLine,
    DownloadLine,
    EngineLine,
    LearnerLine,
    LinkLine,
    NodePhase,
    NodeSnapshot,
    OwnerLine,
    VersionsLine,
)
from node.control.meters import ActiveTime, LinkMeter
from node.engine.base import LocalEngine
from node.engine.state import EngineState
from node.membership.heartbeats import HeartbeatClient
from node.membership.lifecycle import LifecycleRunner
from node.owner.keeper import OwnerKeeper
from node.owner.remedies import remedy_for
from node.owner.settings import describe_settings
from node.rollouts.worker import Worker
from protocols.heartbeat import NodeState
from protocols.ids import PeerId, short


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What tells in which phase a node is."""

    state: NodeState
    paused: str
    is_engine_up: bool
    download: DownloadLine | None
    loading: int | None
    """The version that the engine loads."""
    applied: int | None
    published: int | None
    num_sampling: int
    num_in_hand: int
    learner: str
    error: str
    why: str
    """Of the learner's directive."""


def phase_of(doing: Doing) -> tuple[NodePhase, str]:  # noqa: PLR0911 - a table
    """Return the phase, and the same in words."""
    if doing.state in {NodeState.DRAINING, NodeState.LEFT}:
        return NodePhase.DRAINING, f"finishing {_rollouts(doing.num_in_hand)}, then leaving"
    if doing.paused:
        busy = f"; finishing {_rollouts(doing.num_in_hand)}" if doing.num_in_hand else ""
        return NodePhase.PAUSED, f"{doing.paused}{busy}"
    if doing.num_sampling:
        of = f" of {doing.num_in_hand} in hand" if doing.num_in_hand > doing.num_sampling else ""
        return (
            NodePhase.GENERATING,
            f"generating {doing.num_sampling} completions{of} with version {doing.applied}",
        )
    if doing.state is NodeState.JOINING:
        trouble = f": {doing.error}" if doing.error else ""
        return NodePhase.JOINING, f"looking for the learner {doing.learner}{trouble}"
    if doing.applied is None and doing.download is not None:
        return NodePhase.DOWNLOADING, _download(doing.download)
    if doing.loading is not None and doing.applied is None:
        return NodePhase.LOADING, f"loading version {doing.loading} into the engine"
    if doing.applied is None:
        return NodePhase.WAITING, _waiting(doing)
    if doing.state is NodeState.ACTIVE:
        return NodePhase.IDLE, "ready for the next lease" + (f" ({doing.why})" if doing.why else "")
    return NodePhase.STANDBY, doing.why or "ready; the learner has not asked for work yet"


def _download(download: DownloadLine) -> str:
    eta = "" if download.eta_s is None else f", {format_seconds(download.eta_s)} to go"
    return (
        f"downloading {format_bytes(download.held_bytes)} of {format_bytes(download.total_bytes)}"
        f" at {format_bytes(download.bytes_per_s)}/s{eta}"
    )


def _waiting(doing: Doing) -> str:
    if doing.published is None:
        return "waiting for the learner's first version"
    if not doing.is_engine_up:
        return "waiting for the engine to start"
    return f"preparing version {doing.published}"


def _rollouts(num: int) -> str:
    return "1 rollout" if num == 1 else f"{num} rollouts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewed:
    """The parts that are looked at."""

    run_id: str
    name: str
    state_dir: Path
    software: str
    engine_kind: str
    usd_per_hour: float
    learner: PeerId
    network: Network
    discovery: Discovery
    life: LifecycleRunner
    membership: HeartbeatClient
    sync: PolicySync
    worker: Worker
    engine: LocalEngine
    engine_news: EngineState
    traffic: Traffic
    upload: UploadBudget
    download: DownloadBudget
    owner: OwnerKeeper
    disk_used_bytes: Callable[[], int | None]


class NodeView:
    """Looks at a node's parts; :meth:`look` at least every few seconds, for rates and times."""

    def __init__(self, viewed: Viewed, *, started_s: float) -> None:
        self._viewed = viewed
        self._started_s = started_s
        self._link = LinkMeter()
        self._active = ActiveTime()

    def look(self, now_s: float) -> None:
        """Take rates and times."""
        v = self._viewed
        self._link.look(
            now_s, sent_bytes=v.traffic.sent_bytes, received_bytes=v.traffic.received_bytes
        )
        self._active.look(now_s, is_active=v.life.state is NodeState.ACTIVE)

    def snapshot(self, now_s: float) -> NodeSnapshot:
        """Return what the node is doing."""
        v = self._viewed
        self.look(now_s)
        download = self._download()
        phase, words = phase_of(self._doing(download))
        return NodeSnapshot(
            run_id=v.run_id,
            peer_id=v.network.peer,
            name=v.name,
            state_dir=str(v.state_dir),
            pid=os.getpid(),
            software=v.software,
            uptime_s=now_s - self._started_s,
            phase=phase,
            doing=words,
            state=v.life.state,
            num_rollouts_in_hand=v.worker.num_rollouts_in_hand,
            versions=self._versions(),
            download=download,
            learner=self._learner(now_s),
            contribution=self._contribution(now_s),
            link=self._link_line(),
            engine=self._engine(),
            owner=self._owner(now_s),
        )

    def _doing(self, download: DownloadLine | None) -> Doing:
        v = self._viewed
        reply = v.membership.last_reply
        return Doing(
            state=v.life.state,
            paused=v.owner.paused,
            is_engine_up=v.engine_news.is_up,
            download=download,
            loading=v.worker.applying,
            applied=v.engine.applied_version,
            published=v.sync.known_version,
            num_sampling=v.worker.speed.num_sampling,
            num_in_hand=v.worker.num_rollouts_in_hand,
            learner=short(v.learner),
            error=self._trouble(),
            why="" if reply is None else reply.why,
        )

    def _versions(self) -> VersionsLine:
        v = self._viewed
        held, reply = v.sync.held, v.membership.last_reply
        published, applied = v.sync.known_version, v.engine.applied_version
        is_known = published is not None and applied is not None
        return VersionsLine(
            published=published,
            held=None if held is None else held.version,
            applied=applied,
            learner_step=0 if reply is None else reply.learner_step,
            num_behind=max(0, (published or 0) - (applied or 0)) if is_known else None,
            trouble=v.sync.trouble,
        )

    def _link_line(self) -> LinkLine:
        v = self._viewed
        return LinkLine(
            up_bytes_per_s=self._link.up_bytes_per_s,
            down_bytes_per_s=self._link.down_bytes_per_s,
            sent_bytes=v.traffic.sent_bytes,
            received_bytes=v.traffic.received_bytes,
            up_cap_bytes_per_s=v.upload.bytes_per_s,
            down_cap_bytes_per_s=v.download.bytes_per_s,
            num_peers=len(v.network.connected_peers()),
        )

    def _owner(self, now_s: float) -> OwnerLine:
        v = self._viewed
        return OwnerLine(
            paused=v.owner.paused,
            until_unix_s=v.owner.until_unix_s(now_s),
            settings=describe_settings(v.owner.settings),
            disk_used_bytes=v.disk_used_bytes(),
            disk_quota_bytes=v.owner.settings.disk_bytes,
        )

    def _download(self) -> DownloadLine | None:
        sync = self._viewed.sync
        progress = sync.progress
        if progress is None:
            return None
        left_bytes = progress.total_bytes - progress.held_bytes
        rate = progress.bytes_per_s
        return DownloadLine(
            version=sync.known_version,
            held_bytes=progress.held_bytes,
            total_bytes=progress.total_bytes,
            bytes_per_s=rate,
            eta_s=left_bytes / rate if rate > 0 else None,
        )

    def _trouble(self) -> str:
        """Return why the learner does not answer, or can't even be reached."""
        v = self._viewed
        if v.membership.last_error or v.membership.has_learner:
            return v.membership.last_error
        trouble = v.discovery.trouble
        remedy = remedy_for(trouble)
        return f"{trouble}; {remedy}" if remedy else trouble

    def _learner(self, now_s: float) -> LearnerLine:
        v = self._viewed
        reply, heard_at_s = v.membership.last_reply, v.membership.heard_at_s
        return LearnerLine(
            peer_id=v.learner,
            is_connected=v.learner in v.network.connected_peers(),
            is_answering=v.membership.has_learner and not v.membership.is_failing,
            silent_s=None if heard_at_s is None else now_s - heard_at_s,
            error=self._trouble(),
            directive="" if reply is None else reply.directive.value,
            why="" if reply is None else reply.why,
            warning="" if reply is None else reply.warning,
        )

    def _contribution(self, now_s: float) -> ContributionLine:
        v = self._viewed
        tally, reply = v.worker.tally, v.membership.last_reply
        active_s = self._active.total_s(now_s)
        return ContributionLine(
            num_accepted=tally.num_accepted,
            num_overtaken=tally.num_overtaken,
            refused=tally.refused,
            num_trained=None if reply is None else reply.num_trained,
            num_tokens=tally.num_tokens,
            active_s=active_s,
            usd_per_hour=v.usd_per_hour,
            usd=v.usd_per_hour * active_s / 3600,
        )

    def _engine(self) -> EngineLine:
        v = self._viewed
        speed, news = v.worker.speed, v.engine_news
        measured = speed.tokens_per_s
        return EngineLine(
            kind=v.engine_kind,
            device=news.device,
            tokens_per_s=v.worker.calibrated_tokens_per_s if measured is None else measured,
            num_tokens=speed.num_tokens,
            num_sampling=speed.num_sampling,
            num_deaths=news.num_deaths,
            last_death=news.last_death,
            pids=v.engine.pids,
        )
