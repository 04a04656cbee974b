"""The network port over libp2p: TCP, Noise, yamux, Kademlia, GossipSub.

``docs/adr/0002-network-adapters.md`` says what of the library is used, what is
worked around, and why. The library is imported in this folder only.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio
from libp2p.abc import IHost
from libp2p.tools.anyio_service import background_trio_service

from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.admission.connection_seats import ConnectionSeats
from echo2swarm.network.admission.dial_policy import DialPolicy
from echo2swarm.network.base import Network
from echo2swarm.network.libp2p import tcp
from echo2swarm.network.libp2p.adapter import Libp2pNetwork
from echo2swarm.network.libp2p.arrivals import Arrivals
from echo2swarm.network.libp2p.connections import CLOSE_S
from echo2swarm.network.libp2p.dht import Dht
from echo2swarm.network.libp2p.gate import Gate
from echo2swarm.network.libp2p.gossip import Gossip
from echo2swarm.network.libp2p.host import concrete_addresses, make_host
from echo2swarm.network.libp2p.logs import quiet
from echo2swarm.network.serving import leaves
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from protocols.ids import PeerId

MAX_CONNECTIONS: Final = 512
SHUTDOWN_S: Final = 10.0
"""Longest time that closing takes; it is cut short then."""

_log = structlog.get_logger()


@asynccontextmanager
async def open_network(
    identity: Identity,
    listen: Sequence[str],
    *,
    advertise: Sequence[str] = (),
    ticket_addresses: Sequence[str] | None = None,
    max_connections: int = MAX_CONNECTIONS,
    has_bulk: bool = True,
    go_betweens: Collection[PeerId] = (),
    is_go_between: bool = False,
) -> AsyncIterator[Network]:
    """Take part in the network under ``identity`` for the time of the context.

    Args:
        identity: whose key proves who we are.
        listen: multiaddresses to listen on, port 0 for any; none to dial only.
        advertise: where others reach us, if not on the addresses of this machine.
        ticket_addresses: the addresses in the run's ticket: these are dialled whatever the rules
            for addresses that peers name, and say in which kinds of network the run is. None: it
            is where we are ourselves.
        max_connections: in both directions together.
        has_bulk: whether bulk may go over TLS connections of its own; libp2p carries it if not.
        go_betweens: who may bring us together with peers whom we can't dial, nor they us.
        is_go_between: whether we do so for others.

    Raises:
        UsageError: ``listen`` is malformed.
        NetworkError: a port is in use or not allowed, or the library stopped working.
    """
    ports = await tcp.bind(listen)
    own, policy = _addresses_and_policy(ports, advertise, ticket_addresses)
    options = _Options(max_connections, has_bulk, go_betweens, is_go_between)
    failure: BaseException | None = None
    try:
        with quiet():
            async with trio.open_nursery() as nursery:
                stop = trio.Event()
                network = await nursery.start(
                    partial(_run, identity, ports, own, Gate(policy), options, stop=stop)
                )
                try:
                    yield network
                except (Exception, KeyboardInterrupt) as exc:
                    failure = exc  # The caller's own: raised as it came, not in a group.
                finally:
                    stop.set()
    except ExceptionGroup as group:
        raise leaves(group)[0] from group
    finally:
        await tcp.close(ports)
    if failure is not None:
        raise failure


@dataclass(frozen=True, slots=True)
class _Options:
    """As :func:`open_network` has them."""

    max_connections: int
    has_bulk: bool
    go_betweens: Collection[PeerId]
    is_go_between: bool


def _addresses_and_policy(
    ports: Sequence[tcp.BoundPort],
    advertise: Sequence[str],
    ticket_addresses: Sequence[str] | None,
) -> tuple[tuple[str, ...], DialPolicy]:
    """Return where others can dial us, and what we may dial."""
    own = concrete_addresses(ports, advertise)
    policy = DialPolicy(own if ticket_addresses is None else ticket_addresses)
    for info in group_by_peer(ticket_addresses or ()):
        policy.trust(info.peer, info.addresses)
    if ticket_addresses is not None:
        own = concrete_addresses(ports, advertise, with_loopback=policy.is_on_loopback)
    return own, policy


async def _run(
    identity: Identity,
    ports: Sequence[tcp.BoundPort],
    own: Sequence[str],
    gate: Gate,
    options: _Options,
    *,
    stop: trio.Event,
    task_status: trio.TaskStatus[Libp2pNetwork],
) -> None:
    """Run the host until ``stop``, then leave nothing of it.

    Once it runs, only ``stop`` ends it: cancelled from outside, the library would
    leave sockets open.
    """
    try:
        async with trio.open_nursery() as nursery:
            arrivals = Arrivals()
            made = _make_network(
                identity, ports, own, gate, options, arrivals=arrivals, nursery=nursery
            )
            host, dht, gossip, network = made
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(host.run([port.maddr for port in ports]))
                stack.push_async_callback(_close, host)
                # It would dial everybody it has ever heard of; discovery decides whom to know.
                await host.get_network().auto_connector.stop()
                for service in (dht.service, gossip.pubsub, gossip.router):
                    await stack.enter_async_context(background_trio_service(service))
                await gossip.pubsub.wait_until_ready()
                stack.callback(network.cut_bulk)
                nursery.start_soon(network.maintain)
                nursery.start_soon(network.watch_for_floods, arrivals)
                nursery.cancel_scope.shield = True
                task_status.started(network)
                await stop.wait()
                nursery.cancel_scope.deadline = trio.current_time() + SHUTDOWN_S
            nursery.cancel_scope.cancel()
    except Exception as exc:
        if stop.is_set():
            # Closing under traffic, the library starts tasks in nurseries already closed.
            _log.debug("network.close_failed", error=repr(leaves(exc)[0])[:200])
            return
        raise NetworkError(f"libp2p stopped working: {leaves(exc)[0]!r}") from exc


def _make_network(
    identity: Identity,
    ports: Sequence[tcp.BoundPort],
    own: Sequence[str],
    gate: Gate,
    options: _Options,
    *,
    arrivals: Arrivals,
    nursery: trio.Nursery,
) -> tuple[IHost, Dht, Gossip, Libp2pNetwork]:
    """Make the host, and what uses it; nothing of it runs yet."""

    async def admit(stream: trio.SocketStream) -> Callable[[], Awaitable[None]] | None:
        return await network.admit(stream)

    def is_proven(peer: PeerId) -> bool:
        return network.is_proven(peer)

    host = make_host(
        identity,
        ports,
        own,
        nursery,
        seats=ConnectionSeats(options.max_connections, is_protected=is_proven),
        arrivals=arrivals,
        admit=admit if options.has_bulk else None,
        gate=gate,
        is_proven=is_proven,
    )
    dht, gossip = Dht(host, gate.policy), Gossip(host)
    network = Libp2pNetwork(
        identity.peer,
        own,
        host=host,
        gate=gate,
        dht=dht,
        gossip=gossip,
        nursery=nursery,
        has_bulk=options.has_bulk,
    )
    network.help_to_meet(options.go_betweens, is_go_between=options.is_go_between)
    return host, dht, gossip, network


async def _close(host: IHost) -> None:
    """Close what the host would leave open."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
        await host.close()
