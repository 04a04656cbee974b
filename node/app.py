"""Composition root of ``echo2-node join``: opens everything, in this order, and closes it.

    identity (locked: one process per state directory)
      network
        versions on disk, served to others from the start
          engine process (starts while the learner is sought and weights are fetched)
            discovery, heartbeats, policy sync, the worker: until the run is over or
            the contributor stops it

The first Ctrl-C or SIGTERM drains; the second ends at once.
"""

import signal
import time
from typing import Final

import structlog
import trio

from echo2swarm.network.base import Network
from echo2swarm.network.own_addresses import look_up
from echo2swarm.system.allocator import keep_heap_small
from echo2swarm.system.identity import Identity, hold_identity
from echo2swarm.text.format import format_bytes
from echo2swarm.weights.store.library import open_library
from node.assembly import AssembledNode, assemble, open_context
from node.config import NodeConfig
from node.control.commands_server import ControlHandler
from node.control.registry import registered
from node.control.server import serve_control
from node.engine.pool import open_engines
from node.membership.heartbeats import HeartbeatClient
from node.membership.lifecycle import LifecycleRunner
from node.preflight import check_expiry, check_machine, engine_log, make_room, monitor_of
from node.status_line import StatusLine, StatusReporter
from protocols.ids import short
from protocols.lifecycle import Drained, StopRequested

log = structlog.get_logger()

LAST_WORD_S: Final = 1.0
"""For the learner to hear that a node ends at once."""


def join_run(config: NodeConfig, *, line: StatusLine | None = None) -> bool:
    """Take part in a run; return whether the run came to its end.

    Args:
        config: what the contributor decided.
        line: where to show what the node does; None logs it now and then.

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
            return trio.run(_join, config, identity, line)


async def _join(config: NodeConfig, identity: Identity, line: StatusLine | None) -> bool:
    # The library takes a second to import, and is not needed to say what is wrong with options.
    from echo2swarm.network.libp2p.network import open_network  # noqa: PLC0415

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
            is_finished = await run_node(config, identity, network, stop=stop, line=line)
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
    config: NodeConfig,
    identity: Identity,
    network: Network,
    *,
    stop: trio.Event,
    line: StatusLine | None = None,
) -> bool:
    """Take part until the run is over, or until ``stop`` and drained.

    Returns:
        Whether the run is over.

    Raises:
        EngineBrokenError: the engine dies whatever is done.
        StoreError: the state directory can't be used.
    """
    context = open_context(config, identity, network)
    await trio.to_thread.run_sync(make_room, config)
    monitor = await trio.to_thread.run_sync(monitor_of, config)
    async with (
        open_library(
            context.folder / "weights",
            run=config.ticket.run,
            learner_key=config.ticket.learner_public_key,
            quota_bytes=config.owner.disk_bytes,
        ) as library,
        open_engines(
            config.engines,
            log_path=engine_log(context.folder),
            on_event=context.engine_events.take,
        ) as engine,
    ):
        node = assemble(context, library, engine, monitor=monitor, stop=stop.set)
        await _run(node, stop, line)
        _log_departure(node)
    return context.life.is_run_finished


async def _run(node: AssembledNode, stop: trio.Event, line: StatusLine | None) -> None:
    """Run all services of a node until it has left."""
    config, life = node.context.config, node.context.life
    log.info(
        "learner.seeking",
        learner=short(config.ticket.learner_peer),
        via=config.ticket.addresses,
    )
    answer = ControlHandler(node.keeper, node.view.snapshot).answer
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, config.state_dir, answer)
        await nursery.start(node.exchange.sync.run)
        for service in (*node.services, StatusReporter(node.view.snapshot, line=line).run):
            nursery.start_soon(service)
        nursery.start_soon(_stop_when_told, stop, life)
        await _until_left(life, node.heartbeats)
        nursery.cancel_scope.cancel()


def _log_departure(node: AssembledNode) -> None:
    is_finished, tally = node.context.life.is_run_finished, node.worker.tally
    traffic = node.exchange.traffic
    log.info(
        "node.left",
        because="the run is finished" if is_finished else "it was told to stop",
        accepted=tally.num_accepted,
        refused=tally.num_refused,
        sent=format_bytes(traffic.sent_bytes),
        received=format_bytes(traffic.received_bytes),
    )


async def _until_left(life: LifecycleRunner, membership: HeartbeatClient) -> None:
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


async def _stop_when_told(stop: trio.Event, life: LifecycleRunner) -> None:
    await stop.wait()
    life.happened(StopRequested())
