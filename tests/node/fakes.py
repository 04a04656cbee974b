"""A learner with a script, an engine without a model, and policies without files."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.base import Network
from echo2swarm.network.rpc import serve_calls
from echo2swarm.processes.wire import CallProgress
from echo2swarm.system.errors import ChildError, StoreError
from echo2swarm.weights.store.library import HeldVersion
from node.engine.base import EngineDownError, EngineLostError, PolicyFiles
from node.engine.messages import Completion, Generated
from protocols import heartbeat, leases, rollouts
from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError, RemoteProtocolError
from protocols.heartbeat import Directive, Heartbeat, HeartbeatReply, NodeState
from protocols.ids import PeerId, PolicyVersion
from protocols.leases import (
    Lease,
    LeaseCall,
    LeasedGroup,
    LeaseReply,
    LeaseRequest,
    LeaseReturn,
    SampleSpec,
)
from protocols.manifest import FileRef, PayloadRef, PolicyManifest
from protocols.packed import pack_floats, pack_tokens
from protocols.reasons import Reason
from protocols.rollouts import (
    FinishReason,
    Rollout,
    RolloutSubmission,
    RolloutVerdict,
    SubmissionReply,
)
from protocols.sampling import SamplingParams

RUN = "test-run"
SAMPLING = SamplingParams(1.0, 8, (2,))


def make_lease(
    number: int,
    *,
    num_groups: int = 2,
    group_size: int = 4,
    min_version: int = 0,
    deadline_step: int = 1000,
) -> Lease:
    groups = tuple(
        LeasedGroup(
            100 * number + i,
            pack_tokens([1, 2, 3]),
            tuple(SampleSpec(j, 1000 * number + 10 * i + j) for j in range(group_size)),
        )
        for i in range(num_groups)
    )
    return Lease(f"lease-{number:04d}", min_version, deadline_step, groups, SAMPLING)


@dataclass
class FakeLearner:
    """Answers as it is told, and remembers what it heard."""

    directive: Directive = Directive.ACTIVE
    why: str = "you are cheap"
    step: int = 0
    version: int = 0
    next_heartbeat_s: float = 2.0
    warning: str = ""
    num_leases: int = 0
    """How many it still has to give."""
    refuse: Callable[[Rollout], Reason | None] = lambda _: None
    refuse_whole: list[Reason] = field(default_factory=list)
    """Taken from the front, one for each submission."""
    lose_verdicts: int = 0
    """So many submissions are taken, but their verdicts do not get through."""
    garble: bool = False
    """Answer heartbeats with garbage."""
    mute: bool = False
    """End heartbeats' streams without an answer, as a connection does that is broken inside."""
    make: Callable[[int], Lease] = make_lease
    beats: list[Heartbeat] = field(default_factory=list)
    requests: list[LeaseRequest] = field(default_factory=list)
    granted: list[Lease] = field(default_factory=list)
    returned: list[LeaseReturn] = field(default_factory=list)
    submissions: list[RolloutSubmission] = field(default_factory=list)
    _changed: trio.Event = field(default_factory=trio.Event)

    def serve(self, network: Network) -> None:
        for protocol, answer, request_bytes, reply_bytes in (
            (
                heartbeat.PROTOCOL_ID,
                self.heartbeat,
                heartbeat.MAX_REQUEST_BYTES,
                heartbeat.MAX_REPLY_BYTES,
            ),
            (leases.PROTOCOL_ID, self.lease, leases.MAX_REQUEST_BYTES, leases.MAX_REPLY_BYTES),
            (
                rollouts.PROTOCOL_ID,
                self.judge,
                rollouts.MAX_REQUEST_BYTES,
                rollouts.MAX_REPLY_BYTES,
            ),
        ):
            serve_calls(
                network,
                protocol,
                answer,
                max_request_bytes=request_bytes,
                max_reply_bytes=reply_bytes,
                timeout_s=60,
            )

    def give(self, num_leases: int) -> None:
        self.num_leases += num_leases
        self._ring()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._changed.wait()

    @property
    def states(self) -> list[NodeState]:
        states: list[NodeState] = []
        for beat in self.beats:
            if not states or states[-1] is not beat.state:
                states.append(beat.state)
        return states

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for submission in self.submissions for rollout in submission.rollouts]

    async def heartbeat(self, _: PeerId, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        self.beats.append(decode(data, Heartbeat, max_bytes=heartbeat.MAX_REQUEST_BYTES))
        self._ring()
        if self.garble:
            return b"garbage"
        if self.mute:
            raise MalformedMessageError("no answer")
        reply = HeartbeatReply(
            directive=self.directive,
            why=self.why,
            learner_step=self.step,
            newest_version=self.version,
            next_heartbeat_s=self.next_heartbeat_s,
            neighbours=(),
            warning=self.warning,
        )
        return encode(reply, max_bytes=heartbeat.MAX_REPLY_BYTES)

    async def lease(self, _: PeerId, data: bytes) -> bytes:
        call: LeaseRequest | LeaseReturn = decode(
            data,
            LeaseCall,
            max_bytes=leases.MAX_REQUEST_BYTES,
        )
        if isinstance(call, LeaseReturn):
            self.returned.append(call)
            self._ring()
            return self._lease_reply(None)
        self.requests.append(call)
        self._ring()
        with trio.move_on_after(call.wait_s):
            await self.until(lambda: self.num_leases > 0)
        if not self.num_leases:
            return self._lease_reply(None)
        self.num_leases -= 1
        lease = self.make(len(self.granted) + 1)
        self.granted.append(lease)
        self._ring()
        return self._lease_reply(lease)

    def _lease_reply(self, lease: Lease | None) -> bytes:
        reply = LeaseReply(
            lease=lease, refusal=None, why="", learner_step=self.step, retry_after_s=1.0
        )
        return encode(reply, max_bytes=leases.MAX_REPLY_BYTES)

    async def judge(self, _: PeerId, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        submission = decode(data, RolloutSubmission, max_bytes=rollouts.MAX_REQUEST_BYTES)
        refusal = self.refuse_whole.pop(0) if self.refuse_whole else None
        if refusal is None:
            self.submissions.append(submission)
        if self.lose_verdicts:
            self.lose_verdicts -= 1
            raise RemoteProtocolError("the connection broke")
        verdicts = tuple(
            RolloutVerdict(r.group_id, r.sample_index, self.refuse(r), "said so")
            for r in submission.rollouts
        )
        self._ring()
        reply = SubmissionReply(
            verdicts=verdicts if refusal is None else (),
            refusal=refusal,
            detail="",
            learner_step=self.step,
        )
        return encode(reply, max_bytes=rollouts.MAX_REPLY_BYTES)

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@dataclass
class FakeEngine:
    """Samples the same token again and again, at its own pace."""

    seconds_per_call: float = 1.0
    applied_version: PolicyVersion | None = None
    num_restarts: int = 0
    is_continuous: bool = False
    is_down: bool = False
    refuses_versions: set[int] = field(default_factory=set)
    deaths_left: dict[int, int] = field(default_factory=dict)
    """By version: how often it still dies when it is given that one."""
    has_died: trio.Event = field(default_factory=trio.Event)
    refuses_work: bool = False
    loaded: list[int] = field(default_factory=list)
    called_with: list[tuple[int, int]] = field(default_factory=list)
    """Version and number of completions of each call."""

    async def load_policy(self, policy: PolicyFiles) -> float:
        await trio.sleep(0.1)
        if self.is_down:
            raise EngineDownError("down")
        if policy.version in self.refuses_versions:
            raise ChildError("tensor x is missing")
        if self.deaths_left.get(policy.version, 0):
            self.deaths_left[policy.version] -= 1
            self.die()
            self.has_died.set()
            raise EngineLostError("killed")
        self.applied_version = policy.version
        self.loaded.append(policy.version)
        return 0.1

    async def generate(
        self,
        groups: Sequence[LeasedGroup],
        sampling: SamplingParams,
        *,
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> Generated:
        version = self.applied_version
        if self.is_down or version is None:
            raise EngineDownError("down")
        self.called_with.append((version, sum(len(g.samples) for g in groups)))
        await trio.sleep(self.seconds_per_call)
        if self.is_down:
            raise EngineDownError("died")
        if self.refuses_work:
            raise ChildError("prompt too long")
        completions = tuple(
            Completion(
                group_id=group.group_id,
                sample_index=sample.index,
                tokens=pack_tokens([5, 2]),
                logprobs=pack_floats([-math.log(2)] * 2),
                finish_reason=FinishReason.STOP,
                oldest_version=version,
                newest_version=self.applied_version or version,
            )
            for group in groups
            for sample in group.samples
        )
        return Generated(completions, self.seconds_per_call)

    def die(self) -> None:
        self.is_down = True
        self.applied_version = None

    def come_back(self) -> None:
        self.is_down = False
        self.num_restarts += 1


class FakePolicies:
    """Holds versions that exist by name only."""

    def __init__(self) -> None:
        self._versions: list[HeldVersion] = []
        self._added = trio.Event()
        self.pinned: list[int] = []

    def hold(self, version: int, *, weights: Path = Path("/w"), assets: Path = Path("/a")) -> None:
        payload = PayloadRef(bytes(32), 1, 2**18, (FileRef("x", 1),))
        manifest = PolicyManifest(
            run_id=RUN,
            version=version,
            weights=payload,
            weights_sha256=bytes(32),
            deltas=(),
            assets=payload,
            sampling=SAMPLING,
            max_staleness=2,
            publish_every=1,
            num_versions_kept=3,
        )
        self._versions.append(
            HeldVersion(manifest=manifest, sealed=b"", weights=weights, assets=assets)
        )
        self._added.set()
        self._added = trio.Event()

    @property
    def versions(self) -> list[PolicyVersion]:
        return [held.version for held in self._versions]

    @property
    def held(self) -> HeldVersion | None:
        return self._versions[-1] if self._versions else None

    async def next_version(self, after: PolicyVersion | None) -> HeldVersion:
        while (held := self.held) is None or (after is not None and held.version <= after):
            await self._added.wait()
        await trio.lowlevel.checkpoint()
        return held

    @contextmanager
    def pin(self, version: PolicyVersion) -> Iterator[HeldVersion]:
        found = [held for held in self._versions if held.version == version]
        if not found:
            raise StoreError(f"version {version} is not held")
        self.pinned.append(version)
        yield found[0]


def make_key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
