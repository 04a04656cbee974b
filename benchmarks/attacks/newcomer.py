"""An honest stranger who wants to take part: over the project's own network, each time anew."""

import time
from dataclasses import dataclass
from typing import Final

import msgspec
import trio

from benchmarks.attacks.wire import new_identity
from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.rpc import call
from echo2swarm.system.errors import NetworkError
from protocols import advert, heartbeat, status
from protocols import ticket as ticket_protocol
from protocols.advert import NodeAdvert
from protocols.codec import decode
from protocols.errors import RemoteProtocolError
from protocols.heartbeat import Heartbeat, HeartbeatReply, NodeState
from protocols.status import StatusRequest

GIVE_UP_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One attempt; infinite seconds for what did not come about."""

    at_s: float
    """When it began, on the wall clock."""
    in_s: float
    """From connecting to the directive that answers the first report."""
    status_s: float
    """From asking for the status to having it."""
    why: str = ""
    """What went wrong."""


async def reach(address: str) -> float:
    """Return how long a fresh identity takes to connect to a node; infinity if it can't."""
    (node,) = group_by_peer([address])
    began_s = trio.current_time()
    try:
        with trio.fail_after(GIVE_UP_S):
            async with open_network(new_identity(), ()) as network:
                await network.connect(node, timeout_s=GIVE_UP_S)
                return trio.current_time() - began_s
    except (trio.TooSlowError, NetworkError):
        return float("inf")


async def visit(ticket_line: str) -> Visit:
    """Connect as a fresh identity, report, be told what to do, ask for the status, and leave."""
    ticket = ticket_protocol.parse_ticket(ticket_line, now_unix_s=time.time())
    identity = new_identity()
    (learner,) = (
        info for info in group_by_peer(ticket.addresses) if info.peer == ticket.learner_peer
    )
    began_s, at_s = trio.current_time(), time.time()
    in_s = status_s = float("inf")
    why = ""
    try:
        with trio.fail_after(GIVE_UP_S):
            async with open_network(identity, ()) as network:

                async def say(state: NodeState) -> HeartbeatReply:
                    said = NodeAdvert(
                        run_id=ticket.run_id,
                        peer_id=identity.peer,
                        role="node",
                        seq=time.time_ns(),
                        addresses=(),
                        name="newcomer",
                        engine="none",
                        device="cpu",
                        usd_per_hour=0.0,
                        software="benchmark",
                    )
                    beat = Heartbeat(
                        run_id=ticket.run_id,
                        session_id="newcomer",
                        advert=advert.sign_advert(said, identity.key),
                        state=state,
                        applied_version=None,
                        held_version=None,
                        num_rollouts_in_hand=0,
                        num_engine_restarts=0,
                        payload_bytes_sent=0,
                        payload_bytes_received=0,
                    )
                    reply = await call(
                        network,
                        ticket.learner_peer,
                        heartbeat.PROTOCOL_ID,
                        msgspec.msgpack.encode(beat),
                        max_reply_bytes=heartbeat.MAX_REPLY_BYTES,
                        timeout_s=GIVE_UP_S,
                    )
                    return decode(reply, HeartbeatReply, max_bytes=heartbeat.MAX_REPLY_BYTES)

                await network.connect(learner, timeout_s=GIVE_UP_S)
                await say(NodeState.JOINING)
                in_s = trio.current_time() - began_s
                asked_s = trio.current_time()
                await call(
                    network,
                    ticket.learner_peer,
                    status.PROTOCOL_ID,
                    msgspec.msgpack.encode(StatusRequest(run_id=ticket.run_id)),
                    max_reply_bytes=status.MAX_REPLY_BYTES,
                    timeout_s=GIVE_UP_S,
                )
                status_s = trio.current_time() - asked_s
                await say(NodeState.LEFT)
    except trio.TooSlowError:
        why = f"over {GIVE_UP_S:g} s"
    except (NetworkError, RemoteProtocolError) as exc:
        why = str(exc)[-200:]
    return Visit(at_s=at_s, in_s=in_s, status_s=status_s, why=why)
