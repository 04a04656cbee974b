"""Configurations of small swarms, and an impostor who speaks the protocols badly."""

import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.addresses import split_address
from echo2swarm.network.base import Network, PeerInfo, ServeLimits, Stream, call
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.system.identity import Identity
from learner.config import (
    CheckpointConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SwarmConfig,
    TrainerConfig,
)
from learner.demo.swarm import LocalSwarm
from protocols import advert, chunks, codec, heartbeat, leases, manifest, rollouts
from protocols import ticket as ticket_protocol
from protocols.advert import NodeAdvert
from protocols.heartbeat import Directive, Heartbeat, HeartbeatReply, NodeState
from protocols.leases import Lease, LeaseReply, LeaseRequest, LeaseReturn
from protocols.manifest import PolicyManifest
from protocols.rollouts import Rollout, RolloutSubmission, SubmissionReply
from protocols.status import StatusReply
from protocols.ticket import Ticket
from tests.processes import command_line
from tests.tiny_model import TINY_MODEL_DIR

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
JOIN_S = 180.0
"""Long enough on two busy cores, and no test is slower for it."""

T = TypeVar("T")


def tiny_config(
    *,
    num_steps: int,
    max_staleness: int = 2,
    seed: int = 0,
    prompts_per_step: int = 8,
    lease_timeout_s: float = 20.0,
    trainer: TrainerConfig | None = None,
    upload_mbit: float | None = None,
) -> LearnerConfig:
    """Return a run of the tiny model that takes a fraction of a second per step."""
    return LearnerConfig(
        run=RunConfig(name="e2e", num_steps=num_steps, seed=seed),
        model=ModelConfig(path=str(TINY_MODEL_DIR)),
        task={"kind": "sort_digits"},
        swarm=SwarmConfig(listen=(LOOPBACK,), heartbeat_s=0.5, upload_mbit=upload_mbit),
        rollouts=RolloutConfig(
            prompts_per_step=prompts_per_step,
            group_size=8,
            max_staleness=max_staleness,
            max_new_tokens=6,
            lease_prompts=1,
            lease_timeout_s=lease_timeout_s,
        ),
        trainer=trainer or TrainerConfig(learning_rate=3e-4, warmup_steps=0, threads=1),
        checkpoint=CheckpointConfig(every_steps=0),
    )


def free_port() -> int:
    """Return a TCP port that nobody listens on now.

    None of those that connections get for their own end: while a learner is down, one of
    those who dial it may be given its very port, and keep it.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def is_listening(port: int) -> bool:
    """Whether somebody accepts connections on ``port``."""
    with socket.socket() as s:
        s.settimeout(2)
        return s.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def no_update_before(swarm: LocalSwarm, nodes: Collection[str]) -> AsyncIterator[None]:
    """Start the nodes of these names within: the first update waits until all are at work.

    However slow a machine is in starting them, none comes when the run is over.
    """
    await swarm.wait_event("version.published", timeout_s=JOIN_S)
    (trainer,) = (pid for pid in swarm.pids() if "learner.trainer" in command_line(pid))
    os.kill(trainer, signal.SIGSTOP)
    try:
        yield
        await swarm.wait_status(
            lambda s: active(s) == set(nodes), timeout_s=JOIN_S, what="all nodes at work"
        )
    finally:
        with suppress(ProcessLookupError):
            os.kill(trainer, signal.SIGCONT)


def active(status: StatusReply) -> set[str]:
    """Return the names of the nodes that are there and at work."""
    return {n.name for n in status.nodes if n.is_connected and n.state == NodeState.ACTIVE}


def read_ticket(line: str) -> Ticket:
    """Return what a ticket says."""
    return ticket_protocol.parse_ticket(line, now_unix_s=time.time())


class Impostor:
    """A member of the swarm whose every message is up to the test."""

    def __init__(self, network: Network, key: Ed25519PrivateKey, ticket: Ticket) -> None:
        self.network = network
        self.ticket = ticket
        self.session_id = secrets.token_hex(8)
        self._key = key
        self._newest = 0

    async def heartbeat(
        self, *, state: NodeState, applied_version: int | None = None
    ) -> HeartbeatReply:
        """Report as a node does."""
        said = NodeAdvert(
            run_id=self.ticket.run_id,
            peer_id=self.network.peer,
            role="node",
            seq=1,
            addresses=self.network.addresses(),
            name="impostor",
            engine="none",
            device="none",
            usd_per_hour=0.0,
            software="test",
        )
        return await self._call(
            heartbeat.PROTOCOL_ID,
            Heartbeat(
                run_id=self.ticket.run_id,
                session_id=self.session_id,
                advert=advert.sign_advert(said, self._key),
                state=state,
                applied_version=applied_version,
                held_version=applied_version,
                num_rollouts_in_hand=0,
                num_engine_restarts=0,
                payload_bytes_sent=0,
                payload_bytes_received=0,
            ),
            HeartbeatReply,
            heartbeat.MAX_REPLY_BYTES,
        )

    async def wait_active(self, applied_version: int) -> None:
        """Report until the learner says that we are active."""
        while True:
            reply = await self.heartbeat(state=NodeState.ACTIVE, applied_version=applied_version)
            if reply.directive is Directive.ACTIVE:
                return
            await trio.sleep(0.2)

    async def lease(self) -> tuple[Lease, int]:
        """Ask for work until there is some, always with the newest version; return that, too."""
        while True:
            for _ in range(2):  # The first tells which it is.
                beat = await self.heartbeat(state=NodeState.ACTIVE, applied_version=self._newest)
                self._newest = beat.newest_version
            reply = await self._call(
                leases.PROTOCOL_ID,
                LeaseRequest(
                    run_id=self.ticket.run_id,
                    session_id=self.session_id,
                    applied_version=self._newest,
                    max_completions=8,
                    wait_s=1.0,
                ),
                LeaseReply,
                leases.MAX_REPLY_BYTES,
            )
            if reply.lease is not None:
                return reply.lease, self._newest

    async def give_back(self, lease: Lease) -> None:
        """Want no more of a lease."""
        await self._call(
            leases.PROTOCOL_ID,
            LeaseReturn(
                run_id=self.ticket.run_id,
                session_id=self.session_id,
                lease_id=lease.lease_id,
                why="test",
            ),
            LeaseReply,
            leases.MAX_REPLY_BYTES,
        )

    async def submit(self, lease_id: str, *made: Rollout) -> SubmissionReply:
        """Hand in rollouts, whatever they are."""
        return await self._call(
            rollouts.PROTOCOL_ID,
            RolloutSubmission(
                run_id=self.ticket.run_id,
                session_id=self.session_id,
                lease_id=lease_id,
                rollouts=made,
                generated_in_s=0.1,
            ),
            SubmissionReply,
            rollouts.MAX_REPLY_BYTES,
        )

    async def manifest(self) -> PolicyManifest:
        """Ask the learner for the newest manifest."""
        data = await call(
            self.network,
            self.ticket.learner_peer,
            manifest.PROTOCOL_ID,
            b"",
            max_reply_bytes=manifest.MAX_BYTES,
            timeout_s=JOIN_S,
        )
        return manifest.verify_manifest(data, self.ticket.learner_public_key, run=self.ticket.run)

    async def forge(self, like: PolicyManifest) -> None:
        """Gossip a manifest of a version that does not exist, signed with our own key."""
        forged = msgspec.structs.replace(like, version=like.version + 1000)
        await self.network.publish(
            manifest.topic_of(self.ticket.run), manifest.sign_manifest(forged, self._key)
        )

    def serve_spoiled_chunks(self, size_bytes: int) -> None:
        """Say that we hold every payload, and answer each request with zeros."""

        async def serve(stream: Stream) -> None:
            await stream.receive()
            await stream.send(msgspec.msgpack.encode(chunks.Holding(b"\x01", has_hashes=False)))
            while True:
                request: chunks.Request = codec.decode(
                    await stream.receive(), chunks.Request, max_bytes=chunks.MAX_REQUEST_BYTES
                )
                assert isinstance(request, chunks.WantChunk)
                answer = chunks.Chunk(request.index, memoryview(bytes(size_bytes)))
                await stream.send(msgspec.msgpack.encode(answer))

        self.network.serve(
            chunks.PROTOCOL_ID, serve, ServeLimits(max_frame_bytes=chunks.MAX_REQUEST_BYTES)
        )

    async def _call(
        self, protocol: str, message: msgspec.Struct, kind: type[T], max_bytes: int
    ) -> T:
        reply = await call(
            self.network,
            self.ticket.learner_peer,
            protocol,
            msgspec.msgpack.encode(message),
            max_reply_bytes=max_bytes,
            timeout_s=JOIN_S,
        )
        return codec.decode(reply, kind, max_bytes=max_bytes)


@asynccontextmanager
async def open_impostor(ticket: Ticket) -> AsyncIterator[Impostor]:
    """Join the swarm by its real network, under a new identity."""
    key = Ed25519PrivateKey.generate()
    async with open_network(Identity.of(key), (LOOPBACK,)) as network:
        for address in ticket.addresses:
            peer, bare = split_address(address)
            await network.connect(PeerInfo(peer=peer, addresses=(bare,)), timeout_s=60)
        yield Impostor(network, key, ticket)


def loaded_libraries(pid: int) -> str:
    """Return what a process has mapped into its memory, as text."""
    return Path(f"/proc/{pid}/maps").read_text()
