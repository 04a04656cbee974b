"""A real learner on an in-memory network, with a fake trainer, scorer and publisher.

Nodes are scripted: they keep the wire protocols, and nothing else of a real node.
"""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from math import isnan
from pathlib import Path
from typing import Literal

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.rpc import call
from echo2swarm.system.errors import NetworkError
from echo2swarm.weights.transfer.traffic import Traffic
from learner.config import EvalConfig, LearnerConfig, RolloutConfig, RunConfig, SwarmConfig
from learner.learner import Learner
from learner.ledger.ledger import Ledger, open_ledger
from learner.ledger.resume import LeftOver
from learner.parts import LearnerParts
from learner.run.run_dir import RunDir
from learner.scoring.messages import (
    CompletionToScore,
    Prompt,
    Prompts,
    Reward,
    ScoreFault,
    SkippedPrompt,
    sha256_of_prompt,
)
from learner.scoring.ports import HeldOut
from learner.state.link_table import LinkTable
from learner.status.metrics import Metrics
from learner.trainer.messages import SampledBy, TrainGroup, Updated
from learner.training.checkpoints import Checkpoints
from learner.training.ports import Published
from learner.training.replay import replay
from learner.training.resume import choose_checkpoint
from protocols import advert as advert_protocol
from protocols import heartbeat, leases, rollouts, status
from protocols.advert import NodeAdvert
from protocols.codec import decode, encode
from protocols.heartbeat import Directive, Heartbeat, HeartbeatReply, NodeState
from protocols.ids import PeerId, PolicyVersion, RunId
from protocols.leases import Lease, LeaseReply, LeaseRequest, LeaseReturn
from protocols.packed import pack_tokens, unpack_tokens
from protocols.rollouts import Rollout, RolloutSubmission, SubmissionReply
from protocols.sampling import SamplingParams
from protocols.status import StatusReply, StatusRequest
from tests.echo2swarm.scheduling.leases.samples import STOP, rollout
from tests.fakes.network.memory import MemoryHub
from tests.fakes.network.memory_node import MemoryNetwork

RUN = RunId("test-run")
UNSCORABLE_TOKEN = 13
HELD_OUT_TOKEN = 9
"""Begins every held-out prompt, and none that is trained on."""
Alter = Callable[[Rollout], Rollout]


def config(
    *,
    num_steps: int = 3,
    max_staleness: int = 2,
    prompts_per_step: int = 2,
    group_size: int = 2,
    publish_every: int = 1,
    lease_timeout_s: float = 30.0,
    evaluation: EvalConfig | None = None,
    equal_groups: Literal["keep", "replace"] = "keep",
) -> LearnerConfig:
    return LearnerConfig(
        run=RunConfig(num_steps=num_steps),
        swarm=SwarmConfig(heartbeat_s=1.0),
        rollouts=RolloutConfig(
            prompts_per_step=prompts_per_step,
            group_size=group_size,
            max_staleness=max_staleness,
            publish_every=publish_every,
            max_new_tokens=4,
            lease_prompts=1,
            lease_timeout_s=lease_timeout_s,
            equal_groups=equal_groups,
        ),
        eval=evaluation or EvalConfig(),
    )


# Not in threads: a virtual clock does not wait for them.
def _write(folder: Path, weights: bytes) -> None:
    folder.mkdir()
    (folder / "weights").write_bytes(weights)


def _read(folder: Path) -> bytes:
    return (folder / "weights").read_bytes()


class FakeTrainer:
    """Waits instead of training, and checks on its own what it is given.

    Its "weights" are a hash of every update so far, in order.
    """

    def __init__(self, *, train_s: float = 4.0, max_staleness: int = 2) -> None:
        self.step = 0
        self.batches: list[list[TrainGroup]] = []
        self.weights = bytes(32)
        self.evidence: dict[str, SampledBy] = {}
        """What it says of each update with rollouts of a node."""
        self.save_s = 0.0
        self._train_s = train_s
        self._max_staleness = max_staleness

    async def update(self, step: int, groups: Sequence[TrainGroup]) -> Updated:
        assert step == self.step
        for group in groups:
            for made in group.rollouts:
                assert 0 <= step - made.version <= self._max_staleness
        self.batches.append(list(groups))
        await trio.sleep(self._train_s)
        self.step += 1
        self.weights = sha256(self.weights + msgspec.msgpack.encode(groups)).digest()
        return Updated(self.step, {"loss": 0.5}, {}, sampled_by=self._sampled_by(groups))

    def _sampled_by(self, groups: Sequence[TrainGroup]) -> dict[str, SampledBy]:
        peers = {made.peer_id for group in groups for made in group.rollouts}
        return {peer: self.evidence[peer] for peer in peers if peer in self.evidence}

    async def write_weights(self, folder: Path) -> None:
        await trio.lowlevel.checkpoint()
        _write(folder, self.weights)

    async def save_checkpoint(
        self, folder: Path, *, in_background: bool, on_copied: Callable[[], None]
    ) -> None:
        state = self.step.to_bytes(4, "big") + self.weights
        if in_background:
            on_copied()
        await trio.sleep(self.save_s)
        _write(folder, state)

    def load(self, folder: Path) -> None:
        state = _read(folder)
        self.step, self.weights = int.from_bytes(state[:4], "big"), state[4:]

    @property
    def trained(self) -> list[int]:
        return [group.group_id for batch in self.batches for group in batch]


RewardOf = Callable[[CompletionToScore], float]


def always_right(_completion: CompletionToScore) -> float:
    return 1.0


class FakeScorer:
    """A reward that is NaN stands for a verifier that raises."""

    def __init__(self, reward_of: RewardOf = always_right) -> None:
        self._reward_of = reward_of
        self.waits: dict[str, str] = {}
        """Why nodes have to wait."""
        self.unmade: frozenset[int] = frozenset()
        """Prompts that can't be made."""

    async def draw(self, start: int, count: int) -> Prompts:
        await trio.lowlevel.checkpoint()
        indices = range(start, start + count)
        return Prompts(
            tuple(
                Prompt(i, pack_tokens([1, i % 8]), f"prompt {i}")
                for i in indices
                if i not in self.unmade
            ),
            tuple(
                SkippedPrompt(i, f"items.jsonl, line {i + 1}", "KeyError: 'x'")
                for i in indices
                if i in self.unmade
            ),
        )

    def wait_of(self, owner: str) -> str | None:
        return self.waits.get(owner)

    async def score(
        self, completions: Sequence[CompletionToScore], *, owner: str = ""
    ) -> Sequence[Reward]:
        await trio.lowlevel.checkpoint()
        for each in completions:
            assert each.prompt_sha256 == sha256_of_prompt(pack_tokens([1, each.index % 8]))
        return [
            Reward(None, "", "no digits")
            if UNSCORABLE_TOKEN in unpack_tokens(completion.tokens)
            else self._reward(completion)
            for completion in completions
        ]

    def _reward(self, completion: CompletionToScore) -> Reward:
        value = self._reward_of(completion)
        if isnan(value):
            return Reward(None, "text", "KeyError: 'x'", ScoreFault.FAILED)
        return Reward(value, "text")


class FakeHeldOutScorer:
    """Has prompts of its own, of which the even ones are answered rightly."""

    def __init__(self) -> None:
        self.scored: list[int] = []
        self.score_s = 0.0
        self.waits: dict[str, str] = {}
        """Why nodes have to wait."""
        self.num_waiting = 0
        """Completions to come that are not looked at, as their node has to wait."""

    async def draw(self, start: int, count: int) -> Prompts:
        await trio.lowlevel.checkpoint()
        return Prompts(
            tuple(
                Prompt(i, pack_tokens([HELD_OUT_TOKEN, i]), f"held out {i}")
                for i in range(start, start + count)
            )
        )

    def wait_of(self, owner: str) -> str | None:
        return self.waits.get(owner)

    async def score(
        self, completions: Sequence[CompletionToScore], *, owner: str = ""
    ) -> Sequence[Reward]:
        await trio.sleep(self.score_s)
        if self.num_waiting >= len(completions):
            self.num_waiting -= len(completions)
            return [Reward(None, "", "it waits 10 s", ScoreFault.WAITING) for _ in completions]
        self.scored += [completion.index for completion in completions]
        for each in completions:
            held_out = pack_tokens([HELD_OUT_TOKEN, each.index])
            assert each.prompt_sha256 == sha256_of_prompt(held_out)
        return [
            Reward(None, "", "no digits")
            if UNSCORABLE_TOKEN in unpack_tokens(completion.tokens)
            else Reward(float(completion.index % 2 == 0), "text")
            for completion in completions
        ]


class FakePublisher:
    def __init__(self) -> None:
        self.versions: list[int] = []
        self.weights: dict[int, bytes] = {}

    async def prepare(self, version: PolicyVersion, snapshot: Path) -> Published:
        await trio.lowlevel.checkpoint()
        weights = _read(snapshot)
        self.weights[version] = weights
        return Published(version=version, weights_sha256=weights, size_bytes=1)

    async def announce(self, version: PolicyVersion) -> None:
        await trio.lowlevel.checkpoint()
        self.versions.append(version)


@dataclass
class World:
    """Everything a test needs to look at."""

    hub: MemoryHub
    learner: Learner
    network: MemoryNetwork
    trainer: FakeTrainer
    publisher: FakePublisher
    ledger: Ledger
    folder: Path
    nursery: trio.Nursery
    held_out: FakeHeldOutScorer
    scorer: FakeScorer
    results: list[bool] = field(default_factory=list)
    finished: trio.Event = field(default_factory=trio.Event)

    @property
    def saved_steps(self) -> list[int]:
        return [c.step for c in RunDir(self.folder, RUN).checkpoints.all()]

    def start_node(self, number: int, **options: object) -> "ScriptedNode":
        node = ScriptedNode(self, number, **options)  # type: ignore[arg-type]
        self.nursery.start_soon(node.run)
        return node

    async def status(self) -> StatusReply:
        return self.learner.status.status()


@asynccontextmanager
async def open_world(
    folder: Path,
    with_config: LearnerConfig | None = None,
    *,
    train_s: float = 4.0,
    resume: bool = False,
    trainer: FakeTrainer | None = None,
    reward_of: RewardOf = always_right,
    unmade: frozenset[int] = frozenset(),
) -> AsyncIterator[World]:
    """Run a learner for the time of the context; its end sets ``finished``.

    With ``resume`` it goes on, from the newest checkpoint, with the ledger in ``folder``.
    """
    settings = with_config or config()
    table = settings.rollouts
    hub = MemoryHub(seed=1, latency_s=(0.01, 0.02))
    trainer = trainer or FakeTrainer(train_s=train_s, max_staleness=table.max_staleness)
    publisher, held_out = FakePublisher(), FakeHeldOutScorer()
    scorer = FakeScorer(reward_of)
    scorer.unmade = unmade
    run_dir = RunDir(folder, RUN)

    async with (
        hub.network(_key(0)) as network,
        open_ledger(
            folder / "ledger.sqlite", run_id=RUN, max_staleness=table.max_staleness
        ) as ledger,
        trio.open_nursery() as nursery,
    ):
        run_dir.clean()
        left_over, checkpoint = LeftOver(), None
        if resume:
            checkpoint = await choose_checkpoint(run_dir, ledger)
            if checkpoint is not None:
                trainer.load(checkpoint.trainer)
            left_over = await ledger.resume(
                trainer.step, max_staleness=table.max_staleness, now_unix_s=0.0
            )
            await replay(trainer, left_over.updates)
        with Metrics(folder / "metrics.jsonl") as metrics:
            traffic = Traffic()
            learner = Learner(
                LearnerParts(
                    config=settings,
                    run_id=RUN,
                    network=network,
                    traffic=traffic,
                    links=LinkTable(network.peer, traffic, random.Random(0)),
                    trainer=trainer,
                    scorer=scorer,
                    publisher=publisher,
                    ledger=ledger,
                    metrics=metrics,
                    checkpoints=Checkpoints(
                        run_dir.checkpoints,
                        trainer,
                        ledger,
                        table=settings.checkpoint,
                        first_step=0,
                        saved_step=checkpoint.step if checkpoint else None,
                    ),
                    sampling=SamplingParams(
                        temperature=1.0, max_new_tokens=4, stop_token_ids=(STOP,)
                    ),
                    vocab_size=16,
                    step=trainer.step,
                    left_over=left_over,
                    snapshots=folder / "snapshots",
                    status_file=folder / "status.json",
                    held_out=(
                        HeldOut(scorer=held_out, num_prompts=100)
                        if settings.eval.every_steps
                        else None
                    ),
                ),
            )
            world = World(
                hub,
                learner,
                network,
                trainer,
                publisher,
                ledger,
                folder,
                nursery,
                held_out,
                scorer,
            )
            started = trio.Event()

            async def run() -> None:
                world.results.append(await learner.run(on_started=started.set))
                world.finished.set()

            nursery.start_soon(run)
            await started.wait()
            yield world
            nursery.cancel_scope.cancel()


def _key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)


class ScriptedNode:
    """Joins, follows versions, works, submits; as told.

    Args:
        world: where.
        number: its identity.
        session_id: of this process.
        generate_s: for one lease.
        broadcast_s: from a version's announcement to its use.
        alter: changes every rollout before it is submitted.
        usd_per_hour: its price.
        calibrated_tokens_per_s: what it says a trial of its engine came to.
        lease_protocol: by which it asks for work.
    """

    def __init__(
        self,
        world: World,
        number: int,
        *,
        session_id: str = "session-1",
        generate_s: float = 2.0,
        broadcast_s: float = 0.5,
        alter: Alter | None = None,
        usd_per_hour: float = 1.0,
        calibrated_tokens_per_s: float | None = None,
        lease_protocol: str = leases.PROTOCOL_ID,
    ) -> None:
        self.world = world
        self.lease_protocol = lease_protocol
        self.is_keeping = False
        """Its version, for an evaluation."""
        self.key = _key(number)
        self.name = f"node-{number}"
        self.session_id = session_id
        self.generate_s = generate_s
        self.broadcast_s = broadcast_s
        self.alter = alter
        self.usd_per_hour = usd_per_hour
        self.calibrated_tokens_per_s = calibrated_tokens_per_s
        self.applied: int | None = None
        self.state = NodeState.JOINING
        self.directive = Directive.STANDBY
        self.replies: list[SubmissionReply] = []
        self.leases: list[Lease] = []
        self.network: MemoryNetwork | None = None
        self.peer = PeerId("")
        self.joined = trio.Event()
        self.was_dismissed = False

    async def run(self) -> None:
        """Take part until dismissed, or killed through the hub."""
        async with self.world.hub.network(self.key) as network:
            self.network, self.peer = network, network.peer
            (learner,) = group_by_peer(self.world.network.addresses())
            await network.connect(learner)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._work)
                    await self._beat()
                    nursery.cancel_scope.cancel()
            except* NetworkError:
                pass  # it was killed

    def kill(self) -> None:
        self.world.hub.kill(self.peer)

    async def _beat(self) -> None:
        while True:
            reply = await self.heartbeat()
            self.joined.set()
            self.directive = reply.directive
            if reply.directive is Directive.FINISHED:
                self.was_dismissed = True
                self.state = NodeState.LEFT
                await self.heartbeat()
                return
            is_behind = self.applied is None or reply.newest_version > self.applied
            if is_behind and not self.is_keeping:
                await trio.sleep(self.broadcast_s)
                self._apply(reply.newest_version)
            else:
                await trio.sleep(reply.next_heartbeat_s)

    def _apply(self, version: int) -> None:
        if not self.is_keeping:
            self.applied, self.state = version, NodeState.ACTIVE

    async def _work(self) -> None:
        while True:
            if self.applied is None or self.directive is not Directive.ACTIVE:
                await trio.sleep(0.2)
                continue
            # A real node has its next lease before it is done with this one.
            reply = await self.ask(wait_s=0.0 if self.is_keeping else 10.0)
            self.is_keeping = reply.lease is not None and reply.lease.max_version == self.applied
            if reply.lease is None:
                await trio.sleep(reply.retry_after_s)
                continue
            version = self.applied
            if reply.lease.max_version not in (None, version):
                await self.give_back(reply.lease.lease_id)
                continue
            await trio.sleep(self.generate_s)
            await self.submit(reply.lease.lease_id, self.rollouts_of(reply.lease, version))

    async def heartbeat(self, **changes: object) -> HeartbeatReply:
        fields: dict[str, object] = {
            "run_id": RUN,
            "session_id": self.session_id,
            "advert": self.advert(),
            "state": self.state,
            "applied_version": self.applied,
            "held_version": self.applied,
            "num_rollouts_in_hand": 0,
            "num_engine_restarts": 0,
            "payload_bytes_sent": 0,
            "payload_bytes_received": 0,
            "calibrated_tokens_per_s": self.calibrated_tokens_per_s,
        }
        beat = Heartbeat(**{**fields, **changes})  # type: ignore[arg-type]
        data = await self._call(heartbeat.PROTOCOL_ID, encode(beat, max_bytes=1 << 20))
        return decode(data, HeartbeatReply, max_bytes=1 << 20)

    def advert(self, addresses: tuple[str, ...] | None = None) -> bytes:
        assert self.network is not None
        return advert_protocol.sign_advert(
            NodeAdvert(
                run_id=RUN,
                peer_id=self.peer,
                role="node",
                seq=1,
                addresses=self.network.addresses() if addresses is None else addresses,
                name=self.name,
                engine="scripted",
                device="none",
                usd_per_hour=self.usd_per_hour,
                software="test",
            ),
            self.key,
        )

    async def ask(self, *, wait_s: float = 10.0, run_id: str = RUN) -> LeaseReply:
        request = LeaseRequest(run_id, self.session_id, self.applied or 0, 64, wait_s)
        reply = await self._lease_call(request)
        if reply.lease is not None:
            self.leases.append(reply.lease)
        return reply

    async def give_back(self, lease_id: str) -> LeaseReply:
        return await self._lease_call(LeaseReturn(RUN, self.session_id, lease_id, "test"))

    def rollouts_of(self, lease: Lease, version: int) -> list[Rollout]:
        made = [
            rollout(group_id=group.group_id, index=spec.index, version=version)
            for group in lease.groups
            for spec in group.samples
        ]
        return [self.alter(one) for one in made] if self.alter else made

    async def submit(
        self, lease_id: str, made: Sequence[Rollout], *, run_id: str = RUN
    ) -> SubmissionReply:
        submission = RolloutSubmission(run_id, self.session_id, lease_id, tuple(made), 1.0)
        data = await self._call(rollouts.PROTOCOL_ID, encode(submission, max_bytes=1 << 20))
        reply = decode(data, SubmissionReply, max_bytes=1 << 20)
        self.replies.append(reply)
        return reply

    async def status(self) -> StatusReply:
        data = await self._call(status.PROTOCOL_ID, encode(StatusRequest(RUN), max_bytes=999))
        return decode(data, StatusReply, max_bytes=1 << 20)

    async def _lease_call(self, message: LeaseRequest | LeaseReturn) -> LeaseReply:
        data = await self._call(self.lease_protocol, encode(message, max_bytes=1 << 20))
        return decode(data, LeaseReply, max_bytes=1 << 23)

    async def _call(self, protocol: str, request: bytes) -> bytes:
        assert self.network is not None
        return await call(
            self.network,
            self.world.network.peer,
            protocol,
            request,
            max_reply_bytes=1 << 23,
            timeout_s=60,
        )
