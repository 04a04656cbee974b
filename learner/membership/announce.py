"""How the learner makes itself known: its ticket, its advert, its place in the gossip mesh."""

import platform
import time
from importlib.metadata import version as installed_version

import structlog

from echo2swarm.network.base import Network
from echo2swarm.system.identity import Identity
from protocols import advert as advert_protocol
from protocols import ticket as ticket_protocol
from protocols.advert import NodeAdvert
from protocols.gossip import ManifestGate, Validation
from protocols.ids import PeerId, RunId, short
from protocols.manifest import MAX_BYTES, topic_of
from protocols.ticket import MAX_ADDRESSES, Ticket

log = structlog.get_logger()


def write_ticket(network: Network, identity: Identity, *, run_id: RunId, valid_h: float) -> str:
    """Return the line that admits nodes to the run."""
    return ticket_protocol.format_ticket(
        Ticket(
            run_id=run_id,
            learner_key=identity.key.public_key().public_bytes_raw(),
            addresses=network.addresses()[:MAX_ADDRESSES],
            expires_unix_s=int(time.time() + valid_h * 3600),
        ),
        identity.key,
    )


def sealed_advert(network: Network, identity: Identity, *, run_id: RunId) -> bytes:
    """Return what the DHT stores about the learner."""
    return advert_protocol.sign_advert(
        NodeAdvert(
            run_id=run_id,
            peer_id=identity.peer,
            role="learner",
            seq=time.time_ns() // 1_000_000,
            addresses=network.addresses()[:MAX_ADDRESSES],
            name=platform.node()[:120],
            engine="",
            device="",
            usd_per_hour=0.0,
            software=f"echo2swarm {installed_version('echo2swarm')}",
        ),
        identity.key,
    )


async def relay_manifests(network: Network, identity: Identity, *, run_id: RunId) -> None:
    """Be part of the gossip mesh; nobody else's manifests pass, so there is nothing to read."""
    gate = ManifestGate(identity.key.public_key(), run_id)

    def judge(author: PeerId, data: bytes) -> Validation:
        judgement = gate.judge(data)
        if judgement.fate is Validation.REJECT:
            log.warning(
                "manifest.rejected",
                peer=short(author),
                reason=judgement.reason and judgement.reason.value,
                error=judgement.detail,
            )
        return judgement.fate

    async with network.subscribe(
        topic_of(run_id), judge, max_bytes=MAX_BYTES, authors=(identity.peer,)
    ) as messages:
        async for _ in messages:
            pass
