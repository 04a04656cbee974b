"""Composition root of ``echo2-node join``: opens everything, in this order, and closes it.

    identity (locked: one process per state directory)
      network
        versions on disk, served to others from the start
          engine process (starts while the learner is sought and weights are fetched)
            discovery, heartbeats, policy sync, the worker: until the run is over or
            the contributor stops it

The first Ctrl-C or SIGTERM drains; the second ends at once.
"""

import os
import random
import secrets
import signal
import time
from importlib.metadata import version as version_of_package
from typing import Final

import structlog
import trio

from echo2swarm.allocator import keep_heap_small
from echo2swarm.broadcast.upload import DownloadBudget, UploadBudget
from echo2swarm.humane import format_bytes
from echo2swarm.identity import Identity, hold_identity
from echo2swarm.network.base import Network
from echo2swarm.network.discovery import Discovery
from echo2swarm.network.own_addresses import look_up
from echo2swarm.weights.library import open_library
from echo2swarm.weights.serve import ChunkServer
from echo2swarm.weights.shunned import Shunned
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.traffic import Traffic
from node.config import NodeConfig
from node.control.registry import registered
from node.control.server import serve_control
from node.engine.pool import open_engines
from node.learner_calls import LearnerCalls
from node.life import Life
from node.links import Links, OwnCap
from node.membership import Membership
from node.neighbours import Neighbours
from node.orders import Orders
from node.owner.disk import DiskMeter
from node.owner.keeper import OwnerKeeper
from node.parts import EngineEvents, Obeys, Parts
from node.prober import Prober
from node.reporting import report_of
from node.self_advert import SelfAdvert
from node.snapshot import EngineNews, NodeView, Viewed
from node.start import check_expiry, check_machine, engine_log, local_at, make_room, monitor_of
from node.telling import Teller
from node.worker import Worker
from protocols.activation import HeartbeatReply
from protocols.ids import PolicyVersion, short
from protocols.lifecycle import Drained, PolicyApplied, StopRequested

log = structlog.get_logger()

QUIET_S: Final = 2.0
"""The link is measured when nothing was transferred for this long."""
LAST_WORD_S: Final = 1.0
"""For the learner to hear that a node ends at once."""


def join(config: NodeConfig) -> bool:
    """Take part in a run; return whether the run came to its end.

    Raises:
        KeyboardInterrupt: it was told twice to stop.
        UsageError: a name to advertise is unknown.
        SwarmError: something of this machine does not work; the message says what.
    """
    keep_heap_small()
    check_machine(config)
    with hold_identity(config.state_dir / "identity.key") as identity:
        log.info("node.started", peer=identity.peer, name=config.name, run=config.ticket.run_id)
        with registered(config.registry, config.state_dir):
            return trio.run(_join, config, identity)


async def _join(config: NodeConfig, identity: Identity) -> bool:
    # The library takes a second to import, and is not needed to say what is wrong with options.
    from echo2swarm.network.libp2p import open_network  # noqa: PLC0415

    advertise = await trio.to_thread.run_sync(look_up, config.advertise)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, stop)
        async with open_network(
            identity,
            config.listen,
            advertise=advertise,
            ticket_addresses=config.ticket.addresses,
            go_betweens=[config.ticket.learner_peer] if config.is_hole_punching else [],
        ) as network:
            log.info("network.open", addresses=network.addresses())
            if config.is_ticket_expired:
                await check_expiry(network, config.ticket, unix_now_s=time.time())
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
    started_s = trio.current_time()
    software = f"echo2swarm {version_of_package('echo2swarm')}"
    life, engine_news = Life(), EngineNews()
    advert = SelfAdvert(
        identity,
        network,
        run=ticket.run,
        name=config.name,
        engine=config.engines[0].kind,
        usd_per_hour=config.usd_per_hour,
        software=software,
        seq=time.time_ns() // 1_000_000,
    )
    events = EngineEvents(life, advert, engine_news)
    await trio.to_thread.run_sync(make_room, config)
    monitor = await trio.to_thread.run_sync(monitor_of, config)
    async with (
        open_library(
            folder / "weights",
            run=ticket.run,
            learner_key=ticket.learner_public_key,
            quota_bytes=config.owner.disk_bytes,
        ) as library,
        open_engines(config.engines, log_path=engine_log(folder), on_event=events.take) as engine,
    ):
        traffic = Traffic()
        shunned = Shunned()
        budget = UploadBudget(config.owner.upload_bytes_per_s)
        download = DownloadBudget(config.owner.download_bytes_per_s)
        ChunkServer(
            network,
            library.store,
            traffic,
            shunned=shunned,
            budget=budget,
            is_open=lambda: keeper.is_relaying,
        )
        neighbours = Neighbours(network, learner=ticket.learner_peer, rng=rng)
        network.protect(neighbours.is_relied_on)
        own_cap = OwnCap(budget)
        sync = PolicySync(
            network,
            library,
            learner=ticket.learner_peer,
            holders=neighbours.holders,
            rng=rng,
            traffic=traffic,
            shunned=shunned,
            budget=download,
        )

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
            report=lambda: report_of(
                life=life,
                engine=engine,
                sync=sync,
                worker=worker,
                traffic=traffic,
                links=links,
                engine_news=engine_news,
            ),
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
            is_quiet=lambda: (
                sync.held is not None
                and not keeper.paused
                and links.flow.idle_s(trio.current_time()) > QUIET_S
            ),
            may_i_send=budget.wait_for_owner,
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
            on_trouble=membership.announce,
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
        keeper = OwnerKeeper(
            config.owner,
            Obeys(
                life=life,
                worker=worker,
                sync=sync,
                library=library,
                upload=budget,
                download=download,
                stop=stop.set,
            ),
            monitor=monitor,
            own_pid=os.getpid(),
            unix_now_s=time.time,
            local_at=local_at,
        )
        disk = DiskMeter(folder / "weights")
        view = NodeView(
            Viewed(
                run_id=ticket.run_id,
                name=config.name,
                state_dir=config.state_dir,
                software=software,
                engine_kind=config.engines[0].kind,
                usd_per_hour=config.usd_per_hour,
                learner=ticket.learner_peer,
                network=network,
                discovery=discovery,
                life=life,
                membership=membership,
                sync=sync,
                worker=worker,
                engine=engine,
                engine_news=engine_news,
                traffic=traffic,
                upload=budget,
                download=download,
                owner=keeper,
                disk_used_bytes=lambda: disk.num_bytes,
            ),
            started_s=started_s,
        )
        parts = Parts(membership, worker)
        events.attach(parts)
        life.attach(parts)
        log.info("learner.seeking", learner=short(ticket.learner_peer), via=ticket.addresses)
        async with trio.open_nursery() as nursery:
            await nursery.start(
                serve_control, config.state_dir, Orders(keeper, view.snapshot).answer
            )
            await nursery.start(sync.run)
            teller = Teller(view.snapshot, line=config.line)
            for part in (
                worker,
                neighbours,
                membership,
                discovery,
                links,
                prober,
                keeper,
                disk,
                teller,
            ):
                nursery.start_soon(part.run)
            nursery.start_soon(_stop_when_told, stop, life)
            await _until_left(life, membership)
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


async def _until_left(life: Life, membership: Membership) -> None:
    """Return when this node has left, and the learner knows it or does not answer."""
    try:
        await life.wait_left()
        await membership.say_goodbye()
    except trio.Cancelled:
        # The engine is given up, or we were interrupted twice: nobody need wait for our silence.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WORD_S):
            life.happened(StopRequested())
            life.happened(Drained())
            await membership.say_goodbye()
        raise


async def _stop_when_told(stop: trio.Event, life: Life) -> None:
    await stop.wait()
    life.happened(StopRequested())
