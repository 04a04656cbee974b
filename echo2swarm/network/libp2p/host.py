"""The libp2p host, with every default replaced that loses messages, peers or the process."""

import ipaddress
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import structlog
import trio
from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from multiaddr import Multiaddr
from multiaddr.utils import get_network_addrs

from echo2swarm.network.addresses import merge_addresses
from echo2swarm.network.admission.connection_seats import MAX_SEATS_PER_PEER, ConnectionSeats
from echo2swarm.network.admission.proven import IsProven
from echo2swarm.network.libp2p.arrivals import Arrivals
from echo2swarm.network.libp2p.gate import Gate
from echo2swarm.network.libp2p.negotiation import Negotiation
from echo2swarm.network.libp2p.noise import security_options
from echo2swarm.network.libp2p.tcp import Admit, BoundPort, OwnedTcp
from echo2swarm.network.libp2p.upgrade import HandshakeTurns, SeatedUpgrader
from echo2swarm.network.libp2p.yamux import BulkYamux
from echo2swarm.system.identity import Identity
from protocols.ids import PeerId

MAX_ADDRESS_CHARS: Final = 256
HEALTH_INTERVAL_S: Final = 10.0
PING_TIMEOUT_S: Final = 15.0
"""Generous: a machine that trains answers late, and a dead peer costs only a deadline or two."""

_log = structlog.get_logger()


def make_host(
    identity: Identity,
    ports: Sequence[BoundPort],
    advertise: Sequence[str],
    nursery: trio.Nursery,
    *,
    seats: ConnectionSeats,
    arrivals: Arrivals,
    admit: Admit | None,
    gate: Gate,
    is_proven: IsProven,
) -> IHost:
    """Return a host that listens on ``ports`` once it runs.

    Args:
        identity: whose host it is.
        ports: where it listens.
        advertise: where others can reach it.
        nursery: owns the listeners.
        seats: for the connections, both ways together.
        arrivals: told of what arrives on them.
        admit: takes over connections that are no libp2p ones but for bulk.
        gate: decides what is dialled.
        is_proven: whose streams wait for nobody's.
    """
    key_pair = create_new_key_pair(identity.key.private_bytes_raw())
    announced = [Multiaddr(text) for text in advertise]
    host = new_host(
        key_pair=key_pair,
        sec_opt=security_options(key_pair),
        muxer_opt={TProtocol(YAMUX): BulkYamux},
        transports=[OwnedTcp(ports, nursery, admit, gate)],
        announce_addrs=announced,
        disable_identify_address_discovery=True,
        connection_config=_connection_config(2 * seats.num_seats),
    )
    network = host.get_network()
    # The library's resource manager keeps a count beside what is open, and what is cancelled in
    # mid-handshake stays counted: a few hundred dials into silence, or a port scan, end everything.
    network.set_resource_manager(None)
    handshakes = HandshakeTurns()
    nursery.start_soon(handshakes.run)
    network.upgrader = SeatedUpgrader(
        security_options(key_pair, handshakes.wait), seats, arrivals.add
    )
    network.retry_config = RetryConfig(max_retries=0)  # Who dials decides when to try again.
    negotiation = Negotiation(host, is_proven)
    nursery.start_soon(negotiation.turns.run)
    network.set_stream_handler(partial(_serve_guarded, negotiation))
    return host


async def _serve_guarded(negotiation: Negotiation, stream: INetStream) -> None:
    """Serve a stream, whatever happens.

    An exception that leaves a stream handler, the library's own included, would end the process:
    any peer could do that.
    """
    try:
        await negotiation.serve(stream)
    except Exception as exc:
        _log.debug(
            "stream.failed",
            peer=str(stream.muxed_conn.peer_id)[-8:],
            protocol=str(stream.get_protocol()),
            error=repr(exc)[:200],
        )
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
            await stream.reset()


def _connection_config(max_connections: int) -> ConnectionConfig:
    """Return limits beyond ours, so that ours decide: the library refuses whoever comes last."""
    return ConnectionConfig(
        max_connections=max_connections,
        # No pruning behind our back.
        min_connections=0,
        low_watermark=0,
        high_watermark=max_connections,
        max_connections_per_peer=2 * MAX_SEATS_PER_PEER,
        load_balancing_strategy="latency_based",
        # A vanished peer is otherwise never noticed. Only silence counts: connections
        # are not to be replaced because the machine is busy.
        enable_health_monitoring=True,
        abort_connection_on_ping_failure=True,
        health_initial_delay=HEALTH_INTERVAL_S,
        health_check_interval=HEALTH_INTERVAL_S,
        ping_timeout=PING_TIMEOUT_S,
        min_health_threshold=0.0,
        critical_health_threshold=0.0,
        max_ping_latency=math.inf,
        min_ping_success_rate=0.0,
        max_failed_streams=2**31,
    )


def concrete_addresses(
    ports: Sequence[BoundPort], advertise: Sequence[str], *, with_loopback: bool = False
) -> tuple[str, ...]:
    """Return where others can dial us, without the ``/p2p/`` part.

    A port open on every interface is reached on each of them; loopback counts only on a machine
    that has nothing else, or ``with_loopback`` in a run that is on this machine.
    """
    if advertise:
        return tuple(advertise)
    found: dict[str, None] = {}
    for port in ports:
        _, family, host, *rest = str(port.maddr).split("/")
        hosts: tuple[str, ...] = (host,)
        if ipaddress.ip_address(host).is_unspecified:
            hosts = _interfaces(family, with_loopback=with_loopback)
        found |= {"/".join(("", family, each, *rest)): None for each in hosts}
    return tuple(found)


def _interfaces(family: str, *, with_loopback: bool) -> tuple[str, ...]:
    loopback = ("127.0.0.1",) if family == "ip4" else ("::1",)
    addresses = get_network_addrs(4 if family == "ip4" else 6)
    usable = tuple(a for a in addresses if not ipaddress.ip_address(a).is_loopback)
    return (*loopback, *usable) if with_loopback else usable or loopback


def texts(addresses: Iterable[object]) -> tuple[str, ...]:
    """Return multiaddresses as text, without the ``/p2p/`` part; leaves out what is too long."""
    plain = (str(address).partition("/p2p/")[0] for address in addresses)
    return merge_addresses(text for text in plain if 0 < len(text) <= MAX_ADDRESS_CHARS)


def peer_store_addresses(host: IHost, peer: PeerId) -> tuple[str, ...]:
    """Return what the library knows of ``peer``; what peers say of themselves is signed."""
    store, target = host.get_peerstore(), ID.from_string(peer)
    return texts(store.addrs(target)) if target in store.peer_ids() else ()
