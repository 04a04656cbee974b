"""An identity that speaks the messages of a node over a :class:`~benchmarks.attacks.wire.Wire`."""

import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import Wire, new_identity
from echo2swarm.identity import Identity
from protocols import activation, advert, leases, rollouts
from protocols.activation import Heartbeat, HeartbeatReply, NodeState
from protocols.advert import NodeAdvert
from protocols.codec import decode
from protocols.leases import Lease, LeaseReply, LeaseRequest
from protocols.packed import pack_floats, pack_tokens
from protocols.rollouts import FinishReason, Rollout, RolloutSubmission, SubmissionReply

CALL_S: Final = 20.0

T = TypeVar("T")


class Member:
    """A member of the swarm whose every message is up to the attack."""

    def __init__(self, scene: Scene, wire: Wire, identity: Identity) -> None:
        self.wire = wire
        self.session_id = secrets.token_hex(8)
        self.newest = 0
        self._run_id = scene.ticket.run_id
        self._identity = identity
        self._seq = time.time_ns()

    async def heartbeat(
        self,
        *,
        state: NodeState = NodeState.ACTIVE,
        addresses: Sequence[str] = (),
        text: str = "stranger",
        **fields: object,
    ) -> HeartbeatReply:
        """Report as a node does, that it has the newest version."""
        self._seq += 1
        said = NodeAdvert(
            run_id=self._run_id,
            peer_id=self._identity.peer,
            role="node",
            seq=self._seq,
            addresses=tuple(addresses),
            name=text,
            engine=text,
            device=text,
            usd_per_hour=0.0,
            software="benchmark",
        )
        given: dict[str, Any] = {
            "run_id": self._run_id,
            "session_id": self.session_id,
            "advert": advert.write(said, self._identity.key),
            "state": state,
            "applied_version": self.newest,
            "held_version": self.newest,
            "num_rollouts_in_hand": 0,
            "num_engine_restarts": 0,
            "payload_bytes_sent": 0,
            "payload_bytes_received": 1,
        }
        reply = await self._call(
            activation.PROTOCOL_ID, Heartbeat(**(given | fields)), HeartbeatReply
        )
        self.newest = reply.newest_version
        return reply

    async def lease(self, *, max_completions: int = 64, wait_s: float = 2.0) -> Lease | None:
        """Ask for work."""
        request = LeaseRequest(
            run_id=self._run_id,
            session_id=self.session_id,
            applied_version=self.newest,
            max_completions=max_completions,
            wait_s=wait_s,
        )
        return (await self._call(leases.PROTOCOL_ID, request, LeaseReply)).lease

    async def submit(self, lease_id: str, made: Iterable[Rollout]) -> SubmissionReply:
        """Hand in rollouts, whatever they are."""
        submission = RolloutSubmission(
            run_id=self._run_id,
            session_id=self.session_id,
            lease_id=lease_id,
            rollouts=tuple(made),
            generated_in_s=0.1,
        )
        return await self._call(rollouts.PROTOCOL_ID, submission, SubmissionReply)

    async def _call(self, protocol: str, message: msgspec.Struct, kind: type[T]) -> T:
        reply = await self.wire.call(protocol, msgspec.msgpack.encode(message), within_s=CALL_S)
        return decode(reply, kind, max_bytes=len(reply))


def answer(lease: Lease, tokens: Sequence[int], *, version: int) -> list[Rollout]:
    """Return a completion of the same tokens, a stop at their end, for each that was asked for."""
    stamped = max(lease.min_version, version)
    return [
        Rollout(
            group_id=group.group_id,
            sample_index=sample.index,
            oldest_version=stamped,
            newest_version=stamped,
            tokens=pack_tokens(tokens),
            logprobs=pack_floats([-0.1] * len(tokens)),
            finish_reason=FinishReason.STOP,
        )
        for group in lease.groups
        for sample in group.samples
    ]


@asynccontextmanager
async def open_member(scene: Scene, index: int) -> AsyncIterator[Member]:
    """Connect as a new identity."""
    identity = new_identity()
    async with scene.connection(index, identity) as wire:
        yield Member(scene, wire, identity)
