"""A learner whose model is a trap for the nodes that join it: does the node survive, and say why?

Everything else of the rogue learner is real: its signature, its chunks, its answers. Traps are
so small that a node which falls into one can be afforded here.
"""

import json
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.attacks import procs
from benchmarks.attacks.wire import new_identity
from benchmarks.harness import Mark
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.rpc import serve_calls
from echo2swarm.system.errors import SwarmError
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import PolicyRules, publish_version
from echo2swarm.weights.store.library import open_library
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from learner.demo.settings import LISTEN, TINY_MODEL_DIR
from learner.demo.swarm import LocalSwarm, open_swarm
from protocols import heartbeat
from protocols import ticket as ticket_protocol
from protocols.codec import decode, encode
from protocols.heartbeat import Directive, Heartbeat, HeartbeatReply
from protocols.ids import PeerId, PolicyVersion, RunId
from protocols.sampling import SamplingParams
from protocols.ticket import Ticket

RUN: Final = RunId("trap-0001")
MAX_MEMORY_MB: Final = 100.0
LOOK_S: Final = 0.2
HONEST_S: Final = 90.0
TRAP_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bomb:
    """One trap: what differs in ``config.json``."""

    name: str
    what: str
    change: Mapping[str, Any]
    says: tuple[str, ...]
    """Words of which one is in what the node says."""


BOMBS: Final = (
    Bomb(
        name="bomb-layers",
        what="a config of 5,000 layers for weights of two",
        change={"num_hidden_layers": 5_000},
        says=("num_hidden_layers", "layers"),
    ),
    Bomb(
        name="bomb-vocabulary",
        what="a config of 8 million tokens for weights of 16",
        change={"vocab_size": 8_000_000},
        says=("vocab_size", "vocabulary", "embed_tokens"),
    ),
    Bomb(
        name="bomb-kernels",
        what="a config that names attention code of a hub",
        change={"_attn_implementation": "nobody/evil-kernel"},
        says=("_attn_implementation",),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trapped:
    """What became of a node."""

    bomb: str
    memory_mb: float
    """The most that node and engine held, above what they hold with an honest model."""
    is_alive: bool
    has_said_why: bool
    said: str
    """The line of its log that tells it, or its last one."""


async def spring(bombs: Sequence[Bomb], folder: Path) -> AsyncIterator[Trapped]:
    """Let a node join an honest learner, and one with each of the traps."""
    honest_mb = await _honest_mb(folder / "honest")
    for bomb in bombs:
        async with _joined(bomb.change, folder / bomb.name) as (swarm, _):
            trapped = await _watch(bomb, swarm, honest_mb)
        yield trapped


def marks_of(trapped: Trapped) -> tuple[Mark, ...]:
    """Return what a trap must not have done."""
    return (
        Mark(name="memory grew by, MB", value=trapped.memory_mb, at_most=MAX_MEMORY_MB),
        Mark(name="the node runs", value=float(trapped.is_alive), at_least=1),
        Mark(name="it says why", value=float(trapped.has_said_why), at_least=1),
    )


async def _honest_mb(folder: Path) -> float:
    """Return the most that node and engine hold until an honest version is applied."""
    most = 0.0
    async with _joined({}, folder) as (swarm, applied):
        with trio.fail_after(HONEST_S):
            while not applied.is_set():
                most = max(most, _node_mb(swarm))
                await trio.sleep(LOOK_S)
    return most


async def _watch(bomb: Bomb, swarm: LocalSwarm, honest_mb: float) -> Trapped:
    (node,) = swarm.nodes
    most, until_s = 0.0, time.monotonic() + TRAP_S
    told = None
    while time.monotonic() < until_s:
        most = max(most, _node_mb(swarm))
        told = told or _why(node.log_path, bomb.says)
        await trio.sleep(LOOK_S)
    last = (node.log_tail(1) or [""])[0]
    return Trapped(
        bomb=bomb.name,
        memory_mb=most - honest_mb,
        is_alive=node.is_running,
        has_said_why=told is not None,
        said=(told or last)[:300],
    )


def _why(log: Path, words: tuple[str, ...]) -> str | None:
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in lines if any(word in line for word in words)), None)


def _node_mb(swarm: LocalSwarm) -> float:
    return procs.memory_bytes(procs.roles_of(swarm.pids())).get("node", 0) / 1e6


@asynccontextmanager
async def _joined(
    change: Mapping[str, Any], folder: Path
) -> AsyncIterator[tuple[LocalSwarm, trio.Event]]:
    """Run a learner with such a model, and a node that joins it; the event: it has applied it."""
    model = folder / "model"
    shutil.copytree(TINY_MODEL_DIR, model)
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    async with (
        _rogue(model, folder / "rogue") as (ticket, applied),
        open_swarm(folder / "swarm", grace_s=3.0) as swarm,
    ):
        arguments = ("--listen", LISTEN, "--threads", "1", "--device", "cpu")
        node = await swarm.start_node("node", ticket, arguments=arguments)
        if not node.is_running:
            raise SwarmError(node.obituary())
        yield swarm, applied


@asynccontextmanager
async def _rogue(model: Path, folder: Path) -> AsyncIterator[tuple[str, trio.Event]]:
    """Publish one version of a model as a learner does, and want every node to be active."""
    identity = new_identity()
    applied = trio.Event()
    rules = PolicyRules(
        sampling=SamplingParams(temperature=1.0, max_new_tokens=6, stop_token_ids=(10,)),
        max_staleness=2,
        publish_every=1,
    )

    async def answer(_: PeerId, data: bytes) -> bytes:
        beat = decode(data, Heartbeat, max_bytes=heartbeat.MAX_REQUEST_BYTES)
        if beat.applied_version is not None:
            applied.set()
        reply = HeartbeatReply(
            directive=Directive.ACTIVE,
            why="work",
            learner_step=0,
            newest_version=0,
            next_heartbeat_s=0.5,
            neighbours=(),
        )
        await trio.lowlevel.checkpoint()
        return encode(reply, max_bytes=heartbeat.MAX_REPLY_BYTES)

    async with (
        open_network(identity, (LISTEN,)) as network,
        open_library(folder, run=RUN, learner_key=identity.key.public_key()) as library,
        trio.open_nursery() as nursery,
    ):
        ChunkServer(network, library.store, Traffic())
        announcer = ManifestAnnouncer(network, RUN)
        held = await publish_version(
            library,
            version=PolicyVersion(0),
            snapshot=model,
            assets=model,
            rules=rules,
            key=identity.key,
        )
        await announcer.announce(held.sealed)
        nursery.start_soon(announcer.run)
        serve_calls(
            network,
            heartbeat.PROTOCOL_ID,
            answer,
            max_request_bytes=heartbeat.MAX_REQUEST_BYTES,
            max_reply_bytes=heartbeat.MAX_REPLY_BYTES,
            timeout_s=10.0,
        )
        ticket = Ticket(
            run_id=RUN,
            learner_key=identity.key.public_key().public_bytes_raw(),
            addresses=network.addresses(),
            expires_unix_s=int(time.time()) + 3600,
        )
        yield ticket_protocol.format_ticket(ticket, identity.key), applied
        nursery.cancel_scope.cancel()
