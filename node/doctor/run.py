"""Probes of a run: its learner, its model, the clock, the line. Joins for as long as it asks.

To have its line measured, the machine has to be a member: it takes part as a node that is
paused, which is given no work, and leaves again.
"""

import ipaddress
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version as version_of_package
from typing import Final

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.base import Network
from echo2swarm.status.client import StatusClient
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from echo2swarm.weights.announce import ask_for_manifest
from node.membership.advert import SelfAdvert
from node.membership.heartbeats import HeartbeatClient, NodeReport
from node.membership.link_probe import probe_link
from protocols import manifest as manifest_protocol
from protocols.errors import RemoteProtocolError
from protocols.heartbeat import NodeState
from protocols.ids import PeerId
from protocols.manifest import PolicyManifest
from protocols.probe import ProbeResult
from protocols.status import NodeStatus, Reachability, StatusReply
from protocols.ticket import Ticket

STATUS_S: Final = 12.0
MANIFEST_S: Final = 8.0
LINK_S: Final = 30.0
REFUSED_S: Final = 3.0
"""After which a learner that is busy with others is asked again."""
MEMBER_S: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a run tells."""

    problem: str = ""
    """Why there is nothing else; empty if the learner answered."""
    status: StatusReply | None = None
    manifest: PolicyManifest | None = None
    skew_s: float = 0.0
    """Our clock minus the learner's."""
    round_trip_s: float = 0.0
    own: NodeStatus | None = None
    """This machine's node, if the learner knows one."""
    own_end: str = ""
    """Of the connection to the learner, as this machine sees it: a multiaddress."""
    seen_at: str = ""
    """The same, as the learner sees it: the router's, if there is one in between."""
    addresses: tuple[str, ...] = ()
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    link_problem: str = ""

    @property
    def is_public(self) -> bool:
        """Whether one of the machine's addresses can be reached from anywhere."""
        return any(ipaddress.ip_address(address).is_global for address in self.addresses)

    @property
    def reachability(self) -> Reachability:
        """As the learner knows it."""
        return Reachability.UNKNOWN if self.own is None else self.own.reachability


async def ask_run(ticket: Ticket, own_peer: PeerId | None, *, with_link: bool) -> RunFacts:
    """Return what the run tells, within about a minute.

    Args:
        ticket: to it.
        own_peer: of the node in this state directory, if there was one.
        with_link: whether to have the line measured, if the learner knows it not yet.
    """
    async with _open_network() as (identity, network):
        return await ask_over(network, identity, ticket, own_peer, with_link=with_link)


async def ask_over(
    network: Network,
    identity: Identity,
    ticket: Ticket,
    own_peer: PeerId | None,
    *,
    with_link: bool,
) -> RunFacts:
    """Return what the run tells over a network that is open."""
    addresses = tuple(local_addresses(ticket))
    began_unix_s, began_s = time.time(), trio.current_time()
    client = StatusClient(network, ticket)
    try:
        await client.ask(timeout_s=STATUS_S)
        # Once more, over the connection that is there now: that is the round trip to measure by.
        began_unix_s, began_s = time.time(), trio.current_time()
        status = await client.ask(timeout_s=STATUS_S)
    except (NetworkError, RemoteProtocolError) as exc:
        return RunFacts(problem=str(exc), addresses=addresses)
    round_trip_s = trio.current_time() - began_s
    ends = network.ends(ticket.learner_peer)
    skew_s = began_unix_s + round_trip_s / 2 - status.at_unix_s
    own = next((node for node in status.nodes if node.peer_id == own_peer), None)
    up, down, problem = (
        (own.upload_bytes_per_s, own.download_bytes_per_s, "")
        if own
        else (
            None,
            None,
            "left out",
        )
    )
    if with_link and (up is None or down is None):
        up, down, problem = await _measure_link(network, identity, ticket)
    return RunFacts(
        status=status,
        manifest=await _manifest(network, ticket),
        skew_s=skew_s,
        round_trip_s=round_trip_s,
        own=own,
        own_end="" if ends is None else ends.own,
        seen_at=status.seen_at,
        addresses=addresses,
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        link_problem=problem,
    )


async def _manifest(network: Network, ticket: Ticket) -> PolicyManifest | None:
    with trio.move_on_after(MANIFEST_S), suppress(NetworkError, RemoteProtocolError):
        sealed = await ask_for_manifest(network, ticket.learner_peer)
        if sealed is not None:
            return manifest_protocol.verify_manifest(
                sealed, ticket.learner_public_key, run=ticket.run
            )
    return None


async def _measure_link(
    network: Network, identity: Identity, ticket: Ticket
) -> tuple[float | None, float | None, str]:
    state = NodeState.PAUSED
    membership = _member(network, identity, ticket, lambda: state)
    problem = "the learner does not take this machine as a member"
    result: ProbeResult | None = None
    with trio.move_on_after(LINK_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.run)
            with trio.move_on_after(MEMBER_S):
                await membership.wait_for_learner()
            while membership.has_learner:
                problem = "it took too long"
                try:
                    outcome = await probe_link(
                        network, learner=ticket.learner_peer, run_id=ticket.run_id
                    )
                except (NetworkError, RemoteProtocolError) as exc:
                    problem = str(exc)
                    break
                if isinstance(outcome, ProbeResult):
                    result, problem = outcome, ""
                    break
                problem = f"the learner refuses now ({outcome.reason}); try again later"
                if outcome.retry_after_s > LINK_S:
                    break
                # It measures another node, or sends weights: for some seconds, mostly.
                await trio.sleep(REFUSED_S)
            nursery.cancel_scope.cancel()
    state = NodeState.LEFT
    await membership.say_goodbye()
    if result is None:
        return None, None, problem
    return result.upload_bytes_per_s, result.download_bytes_per_s, ""


def _member(
    network: Network, identity: Identity, ticket: Ticket, state: Callable[[], NodeState]
) -> HeartbeatClient:
    advert = SelfAdvert(
        identity,
        network,
        run=ticket.run,
        name="doctor",
        engine="none",
        usd_per_hour=0.0,
        software=f"echo2swarm {version_of_package('echo2swarm')}",
        seq=time.time_ns() // 1_000_000,
    )
    return HeartbeatClient(
        network,
        run_id=ticket.run_id,
        learner=ticket.learner_peer,
        session_id=secrets.token_hex(16),
        sealed_advert=advert.sealed,
        report=lambda: NodeReport(
            state=state(),
            applied_version=None,
            held_version=None,
            num_rollouts_in_hand=0,
            num_engine_restarts=0,
            payload_bytes_sent=0,
            payload_bytes_received=0,
        ),
        take_faults=lambda: (),
        on_event=lambda _: None,
        on_reply=lambda _: None,
        rng=random.Random(),  # noqa: S311 - jitter
    )


def local_addresses(ticket: Ticket) -> list[str]:
    """Return the addresses that this machine has towards the learner; sends nothing."""
    found: list[str] = []
    for text in ticket.addresses:
        parts = text.split("/")
        if len(parts) < 3 or parts[1] not in {"ip4", "ip6"}:
            continue
        family = socket.AF_INET if parts[1] == "ip4" else socket.AF_INET6
        # Connecting a datagram socket only chooses a route.
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((parts[2], 9))
            found.append(str(probe.getsockname()[0]))
    return sorted(set(found))


@asynccontextmanager
async def _open_network() -> AsyncIterator[tuple[Identity, Network]]:
    from echo2swarm.network.libp2p.network import open_network  # noqa: PLC0415 - takes a second

    identity = Identity.of(Ed25519PrivateKey.generate())
    async with open_network(identity, listen=()) as network:
        yield identity, network
