"""The services for leases and rollouts, with kinds of work that they know nothing of."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from echo2swarm.scheduling.leases.lease_book import LeaseRecord, LeaseState, SampleKey
from echo2swarm.scheduling.leases.lease_rules import NoWork, WorkRequest
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import ChildError
from echo2swarm.system.rates import Timeline
from learner.config import RolloutConfig
from learner.ledger.ledger import open_ledger
from learner.ledger.refusal import Refusal
from learner.rollouts.checks import ContentRules, check_membership
from learner.rollouts.lease_service import LeaseService
from learner.rollouts.rollout_service import RolloutService
from learner.rollouts.work_kind import SubmittedRollout, WorkKind
from learner.scoring.messages import CompletionToScore, Prompts, Reward
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from protocols.codec import decode, encode
from protocols.heartbeat import Directive
from protocols.ids import GroupId, LeaseId, PeerId
from protocols.leases import Lease, LeasedGroup, LeaseReply, LeaseRequest, LeaseReturn, SampleSpec
from protocols.packed import pack_floats, pack_tokens
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout, RolloutSubmission, SubmissionReply
from protocols.sampling import SamplingParams
from tests.echo2swarm.scheduling.leases.samples import ALICE
from tests.learner.state.test_node_table import hear

RUN, SESSION = "run", "session-1"
MAX_BYTES = 1_000_000
RULES = ContentRules(max_new_tokens=2, stop_token_ids=frozenset(), vocab_size=100)


class DyingScorer:
    """Gives 1 for whatever comes, or fails."""

    def __init__(self) -> None:
        self.is_dead = False

    async def draw(self, start: int, count: int) -> Prompts:
        raise NotImplementedError

    async def score(
        self, completions: Sequence[CompletionToScore], *, owner: str = ""
    ) -> Sequence[Reward]:
        await trio.lowlevel.checkpoint()
        if self.is_dead:
            raise ChildError("the scorer died")
        return [Reward(1.0, "", "", None) for _ in completions]

    def wait_of(self, owner: str) -> str | None:
        return None


@dataclass
class Audit:
    """A kind of work that is neither training nor evaluation: completions are only counted."""

    name: str
    reply: NoWork | None = None
    """What it says instead of leasing something."""
    is_idle: bool = False
    is_recorded: bool = True
    scorer: DyingScorer = field(default_factory=DyingScorer)
    rules: ContentRules = RULES
    not_faults: frozenset[Reason] = frozenset()
    leases: dict[str, LeaseRecord] = field(default_factory=dict)
    reserved: set[SampleKey] = field(default_factory=set)
    counted: list[SampleKey] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    async def grant(self, ask: WorkRequest, *, can_keep_version: bool) -> Lease | NoWork | None:
        await trio.lowlevel.checkpoint()
        self.calls.append("grant")
        if self.reply is not None or self.is_idle:
            return self.reply
        keys = {(GroupId(1), 0), (GroupId(1), 1)}
        self.leases["audit-01"] = LeaseRecord(
            lease_id=LeaseId("audit-01"),
            peer=ask.peer,
            session_id=ask.session_id,
            min_version=ask.applied_version,
            deadline_step=1,
            granted_at_s=0.0,
            expires_at_s=60.0,
            samples=frozenset(keys),
            unsettled=set(keys),
        )
        samples = (SampleSpec(0, 1), SampleSpec(1, 2))
        group = LeasedGroup(GroupId(1), pack_tokens([1]), samples)
        sampling = SamplingParams(temperature=1.0, max_new_tokens=2, stop_token_ids=())
        return Lease("audit-01", 0, 1, (group,), sampling)

    def lease(self, lease_id: str) -> LeaseRecord | None:
        return self.leases.get(lease_id)

    def num_in_hand(self, peer: PeerId) -> int:
        return sum(len(lease.unsettled) for lease in self.leases.values())

    def judging(self, lease: LeaseRecord) -> "AuditJudging":
        return AuditJudging(self, lease)

    async def give_back(self, lease: LeaseRecord) -> None:
        await trio.lowlevel.checkpoint()
        self.calls.append("give_back")
        lease.state = LeaseState.RETURNED

    async def end_sessions(self, peer: PeerId, *, except_session: str | None) -> None:
        raise NotImplementedError

    async def node_is_back(self, peer: PeerId, session_id: str) -> None:
        raise NotImplementedError


@dataclass
class AuditJudging:
    work: Audit
    lease: LeaseRecord

    @property
    def rules(self) -> ContentRules:
        return self.work.rules

    @property
    def scorer(self) -> DyingScorer:
        return self.work.scorer

    @property
    def not_faults(self) -> frozenset[Reason]:
        return self.work.not_faults

    def check(self, rollout: Rollout) -> Refusal | None:
        key = (GroupId(rollout.group_id), rollout.sample_index)
        if key in self.work.reserved or key in self.work.counted:
            return Refusal(Reason.DUPLICATE, "it is here already")
        return check_membership(rollout, self.lease)

    def reserve(self, key: SampleKey) -> None:
        self.work.reserved.add(key)

    def cancel(self, key: SampleKey) -> None:
        self.work.reserved.remove(key)

    def to_score(self, rollout: Rollout) -> CompletionToScore:
        return CompletionToScore(rollout.group_id, rollout.tokens, b"")

    def scored(self, rewards: Sequence[Reward]) -> None:
        self.work.calls.append(f"scored {len(rewards)}")

    def result_of(self, rollout: Rollout, reward: Reward) -> float | Refusal:
        return reward.reward if reward.reward is not None else Refusal(Reason.UNSCORABLE, "no")

    async def record(
        self, accepted: Sequence[tuple[SampleKey, float]], refused: Sequence[Refusal]
    ) -> None:
        await trio.lowlevel.checkpoint()
        if not self.work.is_recorded:
            raise OSError("disk full")
        self.work.calls.append(f"record {len(accepted)} {len(refused)}")

    async def conclude(self, results: Sequence[SubmittedRollout[float]]) -> None:
        await trio.lowlevel.checkpoint()
        for result in results:
            if result.is_reserved:
                self.work.reserved.remove(result.key)
        self.work.counted += [r.key for r in results if r.accepted is not None]


@dataclass
class Services:
    nodes: NodeTable
    leases: LeaseService
    rollouts: RolloutService

    async def ask(self) -> LeaseReply:
        call = LeaseRequest(RUN, SESSION, 0, 8, 0.0)
        reply = await self.leases.answer(ALICE, encode(call, max_bytes=MAX_BYTES))
        return decode(reply, LeaseReply, max_bytes=MAX_BYTES)

    async def give_back(self) -> LeaseReply:
        call = LeaseReturn(RUN, SESSION, "audit-01", "leaving")
        reply = await self.leases.answer(ALICE, encode(call, max_bytes=MAX_BYTES))
        return decode(reply, LeaseReply, max_bytes=MAX_BYTES)

    async def submit(self, *rollouts: Rollout) -> list[Reason | None]:
        submission = RolloutSubmission(RUN, SESSION, "audit-01", rollouts, 1.0)
        answer = await self.rollouts.answer(ALICE, encode(submission, max_bytes=MAX_BYTES))
        reply = decode(answer, SubmissionReply, max_bytes=MAX_BYTES)
        assert reply.refusal is None
        return [verdict.refusal for verdict in reply.verdicts]


def rollout(sample: int = 0, *, num_tokens: int = 2) -> Rollout:
    tokens, logprobs = pack_tokens([5] * num_tokens), pack_floats([-1.0] * num_tokens)
    return Rollout(1, sample, 0, 0, tokens, logprobs, FinishReason.LENGTH)


@asynccontextmanager
async def open_services(folder: Path, *kinds: WorkKind) -> AsyncIterator[Services]:
    nodes = NodeTable(silent_after_s=1e6)
    hear(nodes, 0.0, applied=0)
    node = nodes.get(ALICE)
    assert node is not None
    node.directive = Directive.ACTIVE
    progress = LearnerProgress(
        step=0,
        num_steps=1,
        started_s=trio.current_time(),
        rollouts=RolloutConfig(),
        timeline=Timeline(trio.current_time()),
    )
    changes = ChangeEvent()
    async with open_ledger(folder / "ledger.sqlite", run_id=RUN, max_staleness=1) as ledger:
        yield Services(
            nodes,
            LeaseService(
                kinds,
                run_id=RUN,
                nodes=nodes,
                progress=progress,
                changes=changes,
                wait_of=lambda peer: None,
            ),
            RolloutService(
                kinds, run_id=RUN, nodes=nodes, ledger=ledger, progress=progress, changes=changes
            ),
        )


async def test_a_third_kind_of_work_is_leased_judged_and_given_back(tmp_path: Path) -> None:
    audit = Audit("audit")
    async with open_services(tmp_path, Audit("idle", is_idle=True), audit) as services:
        reply = await services.ask()
        verdicts = await services.submit(rollout(0), rollout(0), rollout(1, num_tokens=1))
        again = await services.submit(rollout(0))
        back = await services.give_back()

    assert reply.lease is not None
    assert verdicts == [None, Reason.DUPLICATE, Reason.WRONG_FINISH]
    assert again == [Reason.DUPLICATE]
    assert audit.counted == [(1, 0)]
    assert not audit.reserved
    assert back.why == "taken back"
    assert audit.calls == ["grant", "scored 1", "record 1 2", "record 0 1", "give_back"]


async def test_a_kind_can_keep_a_node_from_the_work_of_those_after_it(tmp_path: Path) -> None:
    first, second = Audit("first", reply=NoWork("busy")), Audit("second")
    async with open_services(tmp_path, first, second) as services:
        reply = await services.ask()

    assert (reply.lease, reply.why) == (None, "busy")
    assert second.calls == []


async def test_a_submission_that_could_not_be_recorded_can_come_again(tmp_path: Path) -> None:
    audit = Audit("audit", is_recorded=False)
    async with open_services(tmp_path, audit) as services:
        await services.ask()
        with pytest.raises(OSError, match="disk full"):
            await services.submit(rollout(0), rollout(1))
        assert not audit.reserved
        audit.is_recorded = True
        verdicts = await services.submit(rollout(0), rollout(1))

    assert verdicts == [None, None]
    assert audit.counted == [(1, 0), (1, 1)]


async def test_what_a_dead_scorer_leaves_unscored_is_refused_and_may_come_again(
    tmp_path: Path,
) -> None:
    audit = Audit("audit")
    async with open_services(tmp_path, audit) as services:
        await services.ask()
        audit.scorer.is_dead = True
        first = await services.submit(rollout(0))
        audit.scorer.is_dead = False
        second = await services.submit(rollout(0))

    assert (first, second) == ([Reason.UNSCORABLE], [None])


async def test_what_a_kind_calls_no_fault_is_not_held_against_its_node(tmp_path: Path) -> None:
    audit = Audit("audit", not_faults=frozenset({Reason.DUPLICATE}))
    async with open_services(tmp_path, audit) as services:
        await services.ask()
        await services.submit(rollout(0), rollout(0), rollout(1, num_tokens=1))
        node = services.nodes.get(ALICE)

    assert node is not None
    assert dict(node.refusals) == {Reason.WRONG_FINISH: 1}
