"""Composition root of ``echo2-node join``: opens everything, in this order, and closes it.

    identity (locked: one process per state directory)
      network
        versions on disk, served to others from the start
          engine process (starts while the learner is sought and weights are fetched)
            discovery, heartbeats, policy sync, the worker: until the run is over or
            the contributor stops it

The first Ctrl-C or SIGTERM drains; the second ends at once.
"""

import random
import secrets
import signal
import time
from dataclasses import dataclass
from importlib.metadata import version as version_of_package
from pathlib import Path
from typing import Final

import structlog
import trio

from echo2swarm.broadcast.upload import UploadBudget
from echo2swarm.humane import format_bytes, format_seconds
from echo2swarm.identity import Identity, hold_identity
from echo2swarm.network.base import Network
from echo2swarm.network.discovery import Discovery
from echo2swarm.weights.library import open_library
from echo2swarm.weights.serve import ChunkServer
from echo2swarm.weights.shunned import Shunned
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.traffic import Traffic
from node.engine.base import EngineDied, EngineEvent, EngineReady
from node.engine.process import EngineSpec, open_engine
from node.learner_calls import LearnerCalls
from node.life import Life
from node.links import Links, OwnCap
from node.membership import Membership, NodeReport
from node.neighbours import Neighbours
from node.prober import Prober
from node.self_advert import SelfAdvert
from node.worker import Worker
from protocols.activation import HeartbeatReply
from protocols.ids import PolicyVersion, short
from protocols.lifecycle import Drained, PolicyApplied, StopRequested
from protocols.lifecycle import EngineDied as EngineDiedEvent
from protocols.ticket import Ticket

log = structlog.get_logger()

TELL_PROGRESS_S: Final = 3.0
QUIET_S: Final = 2.0
"""The link is measured when nothing was transferred for this long."""
MAX_LOG_BYTES: Final = 10_000_000
"""The engine's log starts anew when it is longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What the contributor decided."""

    ticket: Ticket
    state_dir: Path
    name: str
    listen: tuple[str, ...]
    advertise: tuple[str, ...]
    engine: EngineSpec
    max_batch: int
    usd_per_hour: float
    upload_bytes_per_s: float | None = None
    """Most to upload of weights; None for most of what is measured."""
    is_hole_punching: bool = True
    """Whether to connect to nodes behind routers with the learner's help."""


def join(config: NodeConfig) -> bool:
    """Take part in a run; return whether the run came to its end.

    Raises:
        KeyboardInterrupt: it was told twice to stop.
        SwarmError: something of this machine does not work; the message says what.
    """
    with hold_identity(config.state_dir / "identity.key") as identity:
        log.info("node.started", peer=identity.peer, name=config.name, run=config.ticket.run_id)
        return trio.run(_join, config, identity)


async def _join(config: NodeConfig, identity: Identity) -> bool:
    # The library takes a second to import, and is not needed to say what is wrong with options.
    from echo2swarm.network.libp2p import open_network  # noqa: PLC0415

    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, stop)
        async with open_network(
            identity,
            config.listen,
            advertise=config.advertise,
            go_betweens=[config.ticket.learner_peer] if config.is_hole_punching else [],
        ) as network:
            log.info("network.open", addresses=network.addresses())
            is_finished = await run_node(config, identity, network, stop=stop)
        nursery.cancel_scope.cancel()
    return is_finished


async def _watch_signals(
    stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                raise KeyboardInterrupt
            log.info("node.stopping", next="finishing what is in hand; once more stops at once")
            stop.set()


async def run_node(
    config: NodeConfig, identity: Identity, network: Network, *, stop: trio.Event
) -> bool:
    """Take part until the run is over, or until ``stop`` and drained.

    Returns:
        Whether the run is over.

    Raises:
        EngineBrokenError: the engine dies whatever is done.
        StoreError: the state directory can't be used.
    """
    ticket, rng = config.ticket, random.Random()  # noqa: S311 - jitter and ties, no secret
    folder = config.state_dir / "runs" / ticket.run_id
    session_id = secrets.token_hex(16)
    life = Life()
    advert = SelfAdvert(
        identity,
        network,
        run=ticket.run,
        name=config.name,
        engine=config.engine.kind,
        usd_per_hour=config.usd_per_hour,
        software=f"echo2swarm {version_of_package('echo2swarm')}",
        seq=time.time_ns() // 1_000_000,
    )
    events = _EngineEvents(life, advert)
    async with (
        open_library(
            folder / "weights", run=ticket.run, learner_key=ticket.learner_public_key
        ) as library,
        open_engine(config.engine, log_path=_engine_log(folder), on_event=events.take) as engine,
    ):
        traffic = Traffic()
        shunned = Shunned()
        budget = UploadBudget(config.upload_bytes_per_s)
        ChunkServer(network, library.store, traffic, shunned=shunned, budget=budget)
        neighbours = Neighbours(network, learner=ticket.learner_peer, rng=rng)
        own_cap = OwnCap(budget)
        sync = PolicySync(
            network,
            library,
            learner=ticket.learner_peer,
            holders=neighbours.holders,
            rng=rng,
            traffic=traffic,
            shunned=shunned,
        )

        def report() -> NodeReport:
            held = sync.held
            return NodeReport(
                state=life.state,
                applied_version=engine.applied_version,
                held_version=None if held is None else held.version,
                num_rollouts_in_hand=worker.num_rollouts_in_hand,
                num_engine_restarts=engine.num_restarts,
                payload_bytes_sent=traffic.sent_bytes,
                payload_bytes_received=traffic.received_bytes,
                receiving_s=links.flow.receiving_s,
                links=links.reports(),
                calibrated_tokens_per_s=worker.calibrated_tokens_per_s,
            )

        def is_quiet() -> bool:
            return sync.held is not None and links.flow.idle_s(trio.current_time()) > QUIET_S

        def on_reply(reply: HeartbeatReply) -> None:
            own_cap.look(
                trio.current_time(),
                measured_bytes_per_s=reply.upload_bytes_per_s,
                sending_s=links.flow.sending_s,
            )
            sync.hint(PolicyVersion(reply.newest_version))
            worker.step_heard(reply.learner_step)
            neighbours.named(reply.neighbours)

        def on_applied(version: PolicyVersion) -> None:
            life.happened(PolicyApplied(version))
            membership.announce()

        membership = Membership(
            network,
            run_id=ticket.run_id,
            learner=ticket.learner_peer,
            session_id=session_id,
            sealed_advert=advert.sealed,
            report=report,
            take_faults=sync.take_reports,
            on_event=life.happened,
            on_reply=on_reply,
            rng=rng,
        )
        links = Links(traffic, dials=lambda: neighbours.dials, on_change=membership.announce)
        prober = Prober(
            network,
            learner=ticket.learner_peer,
            run_id=ticket.run_id,
            is_quiet=is_quiet,
            may_i_send=None if budget.max_bytes_per_s is None else budget.wait,
        )
        worker = Worker(
            LearnerCalls(
                network,
                learner=ticket.learner_peer,
                run_id=ticket.run_id,
                session_id=session_id,
            ),
            engine,
            sync,
            max_batch=config.max_batch,
            on_applied=on_applied,
            on_drained=lambda: life.happened(Drained()),
            on_doubt=membership.announce,
            on_calibrated=membership.announce,
            is_learner_silent=lambda: membership.is_failing,
            rng=rng,
        )
        discovery = Discovery(
            network,
            run=ticket.run,
            learner=ticket.learner_peer,
            boot=ticket.addresses,
            sealed_advert=advert.sealed,
            rng=rng,
            unix_now_s=time.time,
            book_path=folder / "addresses.json",
        )
        parts = _Parts(membership, worker)
        events.attach(parts)
        life.attach(parts)
        log.info("learner.seeking", learner=short(ticket.learner_peer), via=ticket.addresses)
        async with trio.open_nursery() as nursery:
            await nursery.start(sync.run)
            nursery.start_soon(worker.run)
            nursery.start_soon(neighbours.run)
            nursery.start_soon(membership.run)
            nursery.start_soon(discovery.run)
            nursery.start_soon(links.run)
            nursery.start_soon(prober.run)
            nursery.start_soon(_tell_download, sync)
            nursery.start_soon(_stop_when_told, stop, life)
            await life.wait_left()
            await membership.say_goodbye()
            nursery.cancel_scope.cancel()
        log.info(
            "node.left",
            because="the run is finished" if life.is_run_finished else "it was told to stop",
            accepted=worker.tally.num_accepted,
            refused=worker.tally.num_refused,
            sent=format_bytes(traffic.sent_bytes),
            received=format_bytes(traffic.received_bytes),
        )
    return life.is_run_finished


class _Parts:
    """What the node's life acts on."""

    def __init__(self, membership: Membership, worker: Worker) -> None:
        self.announce = membership.announce
        self.take_work = worker.take_work
        self.stop_taking_work = worker.stop_taking_work
        self.hand_back = worker.hand_back
        self.pause = worker.pause
        self.drain = worker.drain
        self.engine_changed = worker.engine_changed


class _EngineEvents:
    """Passes on what happens to the engine, which may be before the rest is there."""

    def __init__(self, life: Life, advert: SelfAdvert) -> None:
        self._life = life
        self._advert = advert
        self._parts: _Parts | None = None

    def attach(self, parts: _Parts) -> None:
        """Tell ``parts`` too from now on; what they missed, they see for themselves."""
        self._parts = parts

    def take(self, event: EngineEvent) -> None:
        """Take in one event."""
        match event:
            case EngineReady(description):
                self._advert.describe_engine(description)
            case EngineDied(why):
                self._life.happened(EngineDiedEvent(why))
        if self._parts is not None:
            self._parts.engine_changed()
            self._parts.announce()


async def _stop_when_told(stop: trio.Event, life: Life) -> None:
    await stop.wait()
    life.happened(StopRequested())


async def _tell_download(sync: PolicySync) -> None:
    """Say now and then how far the weights are."""
    while True:
        await trio.sleep(TELL_PROGRESS_S)
        progress = sync.progress
        if progress is None:
            continue
        left_bytes = progress.total_bytes - progress.held_bytes
        eta_s = left_bytes / progress.bytes_per_s if progress.bytes_per_s > 0 else None
        log.info(
            "version.downloading",
            version=sync.known_version,
            have=f"{format_bytes(progress.held_bytes)} of {format_bytes(progress.total_bytes)}",
            rate=f"{format_bytes(progress.bytes_per_s)}/s",
            eta=format_seconds(eta_s),
        )


def _engine_log(folder: Path) -> Path:
    path = folder / "engine.log"
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.unlink()
    return path
