"""Makes the parts of a node, each from parts that exist already, and connects them.

    NodeContext      who the node is, its lifecycle, its contact with the learner
      Exchange       what moves weights: the sync, the budgets, the neighbours
        AssembledNode  the worker, the heartbeats, the owner's keeper, the status

Nothing runs here: :func:`node.app.run_node` does that.
"""

import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as version_of_package
from pathlib import Path

import trio

from echo2swarm.network.base import Network
from echo2swarm.network.discovery import Discovery
from echo2swarm.system.identity import Identity
from echo2swarm.weights.store.library import VersionLibrary
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.banned import BanList
from echo2swarm.weights.transfer.rate_limit import DownloadBudget, UploadBudget
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from node.config import NodeConfig
from node.control.snapshot import NodeView, Viewed
from node.engine.base import LocalEngine
from node.engine.state import EngineState
from node.membership.advert import SelfAdvert
from node.membership.contact import LearnerContact
from node.membership.heartbeats import HeartbeatClient
from node.membership.lifecycle import LifecycleRunner
from node.membership.link_probe import Prober
from node.membership.link_reports import LinkReporter, OwnCap
from node.membership.neighbours import Neighbours
from node.membership.report import report_of
from node.owner.disk import DiskMeter
from node.owner.gpu import GpuMonitor
from node.owner.keeper import OwnerKeeper
from node.preflight import local_at
from node.rollouts.learner_client import LearnerClient
from node.rollouts.worker import Worker
from node.wiring import EngineEvents, NodeParts, OwnerActions, QuietLink, ReplyActions
from protocols.ids import PolicyVersion
from protocols.lifecycle import Drained, PolicyApplied


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What every part of one node may need: it exists before the engine and the weights do."""

    config: NodeConfig
    identity: Identity
    network: Network
    folder: Path
    """Of this run."""
    session_id: str
    software: str
    started_s: float
    rng: random.Random
    contact: LearnerContact
    life: LifecycleRunner
    """The hub: what happens to any part goes to it, and it acts on the parts."""
    engine_state: EngineState
    advert: SelfAdvert

    @property
    def engine_events(self) -> EngineEvents:
        """What takes in the events of the engine."""
        return EngineEvents(self.life, self.advert, self.engine_state)


def open_context(config: NodeConfig, identity: Identity, network: Network) -> NodeContext:
    """Return the context of a node that starts now."""
    software = f"echo2swarm {version_of_package('echo2swarm')}"
    return NodeContext(
        config=config,
        identity=identity,
        network=network,
        folder=config.state_dir / "runs" / config.ticket.run_id,
        session_id=secrets.token_hex(16),
        software=software,
        started_s=trio.current_time(),
        rng=random.Random(),  # noqa: S311 - jitter and ties, no secret
        contact=LearnerContact(),
        life=LifecycleRunner(),
        engine_state=EngineState(),
        advert=SelfAdvert(
            identity,
            network,
            run=config.ticket.run,
            name=config.name,
            engine=config.engines[0].kind,
            usd_per_hour=config.usd_per_hour,
            software=software,
            seq=time.time_ns() // 1_000_000,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What fetches weights and passes them on."""

    library: VersionLibrary
    traffic: Traffic
    banned: BanList
    upload: UploadBudget
    download: DownloadBudget
    neighbours: Neighbours
    sync: PolicySync
    links: LinkReporter


def make_exchange(context: NodeContext, library: VersionLibrary) -> Exchange:
    """Return what exchanges the versions of ``library`` with others."""
    network, owner = context.network, context.config.owner
    learner = context.config.ticket.learner_peer
    traffic, banned = Traffic(), BanList()
    download = DownloadBudget(owner.download_bytes_per_s)
    neighbours = Neighbours(network, learner=learner, rng=context.rng)
    network.protect(neighbours.is_relied_on)
    return Exchange(
        library=library,
        traffic=traffic,
        banned=banned,
        upload=UploadBudget(owner.upload_bytes_per_s),
        download=download,
        neighbours=neighbours,
        sync=PolicySync(
            network,
            library,
            learner=learner,
            holders=neighbours.holders,
            rng=context.rng,
            traffic=traffic,
            shunned=banned,
            budget=download,
        ),
        links=LinkReporter(
            traffic, dials=lambda: neighbours.dials, on_change=context.contact.announce
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledNode:
    """The parts of one node, connected."""

    context: NodeContext
    exchange: Exchange
    worker: Worker
    heartbeats: HeartbeatClient
    keeper: OwnerKeeper
    discovery: Discovery
    prober: Prober
    disk: DiskMeter
    view: NodeView

    @property
    def services(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """What runs for as long as the node takes part; the sync is apart: it has to be ready."""
        return (
            self.worker.run,
            self.exchange.neighbours.run,
            self.heartbeats.run,
            self.discovery.run,
            self.exchange.links.run,
            self.prober.run,
            self.keeper.run,
            self.disk.run,
        )


def assemble(
    context: NodeContext,
    library: VersionLibrary,
    engine: LocalEngine,
    *,
    monitor: GpuMonitor | None,
    stop: Callable[[], None],
) -> AssembledNode:
    """Make and connect the parts of a node; chunks are served from now on.

    Args:
        context: who it is.
        library: the versions on disk.
        engine: what samples.
        monitor: of the GPU; None where there is none.
        stop: ends the node, as its owner may.
    """
    exchange = make_exchange(context, library)
    worker = _make_worker(context, exchange, engine)
    heartbeats = _make_heartbeats(context, exchange, engine, worker)
    keeper = _make_keeper(context, exchange, worker, monitor=monitor, stop=stop)
    ChunkServer(
        context.network,
        library.store,
        exchange.traffic,
        shunned=exchange.banned,
        budget=exchange.upload,
        is_open=lambda: keeper.is_relaying,
    )
    discovery = _make_discovery(context)
    disk = DiskMeter(context.folder / "weights")
    viewed = _viewed(context, exchange, engine)
    context.life.attach(NodeParts(context.contact, worker))
    return AssembledNode(
        context=context,
        exchange=exchange,
        worker=worker,
        heartbeats=heartbeats,
        keeper=keeper,
        discovery=discovery,
        prober=_make_prober(context, exchange, keeper),
        disk=disk,
        view=NodeView(
            viewed(
                membership=heartbeats,
                worker=worker,
                owner=keeper,
                discovery=discovery,
                disk_used_bytes=lambda: disk.num_bytes,
            ),
            started_s=context.started_s,
        ),
    )


def _make_worker(context: NodeContext, exchange: Exchange, engine: LocalEngine) -> Worker:
    life, contact, ticket = context.life, context.contact, context.config.ticket

    def on_applied(version: PolicyVersion) -> None:
        life.happened(PolicyApplied(version))
        contact.announce()

    return Worker(
        LearnerClient(
            context.network,
            learner=ticket.learner_peer,
            run_id=ticket.run_id,
            session_id=context.session_id,
        ),
        engine,
        exchange.sync,
        max_batch=context.config.max_batch,
        on_applied=on_applied,
        on_drained=lambda: life.happened(Drained()),
        on_doubt=contact.announce,
        on_calibrated=contact.announce,
        on_trouble=contact.announce,
        is_learner_silent=lambda: contact.is_failing,
        rng=context.rng,
    )


def _make_heartbeats(
    context: NodeContext, exchange: Exchange, engine: LocalEngine, worker: Worker
) -> HeartbeatClient:
    ticket = context.config.ticket
    replies = ReplyActions(
        own_cap=OwnCap(exchange.upload),
        flow=exchange.links.flow,
        sync=exchange.sync,
        worker=worker,
        neighbours=exchange.neighbours,
    )
    return HeartbeatClient(
        context.network,
        run_id=ticket.run_id,
        learner=ticket.learner_peer,
        session_id=context.session_id,
        sealed_advert=context.advert.sealed,
        report=partial(
            report_of,
            life=context.life,
            engine=engine,
            sync=exchange.sync,
            worker=worker,
            traffic=exchange.traffic,
            links=exchange.links,
            engine_news=context.engine_state,
        ),
        take_faults=exchange.sync.take_reports,
        on_event=context.life.happened,
        on_reply=replies.take,
        contact=context.contact,
        rng=context.rng,
    )


def _make_keeper(
    context: NodeContext,
    exchange: Exchange,
    worker: Worker,
    *,
    monitor: GpuMonitor | None,
    stop: Callable[[], None],
) -> OwnerKeeper:
    actions = OwnerActions(
        life=context.life,
        worker=worker,
        sync=exchange.sync,
        library=exchange.library,
        upload=exchange.upload,
        download=exchange.download,
        stop=stop,
    )
    return OwnerKeeper(
        context.config.owner,
        actions,
        monitor=monitor,
        own_pid=os.getpid(),
        unix_now_s=time.time,
        local_at=local_at,
    )


def _make_prober(context: NodeContext, exchange: Exchange, keeper: OwnerKeeper) -> Prober:
    ticket = context.config.ticket
    return Prober(
        context.network,
        learner=ticket.learner_peer,
        run_id=ticket.run_id,
        quiet=QuietLink(exchange.sync, keeper, exchange.links.flow),
        may_i_send=exchange.upload.wait_for_owner,
    )


def _make_discovery(context: NodeContext) -> Discovery:
    ticket = context.config.ticket
    return Discovery(
        context.network,
        run=ticket.run,
        learner=ticket.learner_peer,
        boot=ticket.addresses,
        sealed_advert=context.advert.sealed,
        rng=context.rng,
        unix_now_s=time.time,
        book_path=context.folder / "addresses.json",
    )


def _viewed(context: NodeContext, exchange: Exchange, engine: LocalEngine) -> "partial[Viewed]":
    """Return what the status shows, but for the parts that the caller adds."""
    config = context.config
    return partial(
        Viewed,
        run_id=config.ticket.run_id,
        name=config.name,
        state_dir=config.state_dir,
        software=context.software,
        engine_kind=config.engines[0].kind,
        usd_per_hour=config.usd_per_hour,
        learner=config.ticket.learner_peer,
        network=context.network,
        life=context.life,
        sync=exchange.sync,
        engine=engine,
        engine_news=context.engine_state,
        traffic=exchange.traffic,
        upload=exchange.upload,
        download=exchange.download,
    )
