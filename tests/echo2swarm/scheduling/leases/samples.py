"""Prompts, rules and rollouts for tests of the learner's cores."""

from echo2swarm.scheduling.leases.groups import AcceptedRollout
from echo2swarm.scheduling.leases.lease_rules import DispatchRules, WorkRequest
from learner.scoring.messages import Prompt
from protocols.ids import PeerId, PolicyVersion
from protocols.leases import Lease
from protocols.packed import pack_floats, pack_tokens
from protocols.rollouts import FinishReason, Rollout
from protocols.sampling import SamplingParams

ALICE, BOB = PeerId("alice"), PeerId("bob")
STOP = 7
SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=4, stop_token_ids=(STOP,))


def rules(
    *,
    groups_per_step: int = 2,
    group_size: int = 2,
    max_staleness: int = 2,
    publish_every: int = 1,
    headroom: float = 0.0,
    lease_prompts: int = 1,
    max_leases_per_node: int = 100,
    max_attempts: int = 8,
    num_steps: int = 1_000_000,
) -> DispatchRules:
    return DispatchRules(
        run_seed=0,
        groups_per_step=groups_per_step,
        group_size=group_size,
        max_staleness=max_staleness,
        publish_every=publish_every,
        headroom=headroom,
        lease_prompts=lease_prompts,
        lease_timeout_s=10.0,
        sampling=SAMPLING,
        max_leases_per_node=max_leases_per_node,
        max_attempts=max_attempts,
        num_steps=num_steps,
    )


def prompts(count: int, *, start: int = 0) -> list[Prompt]:
    return [Prompt(i, pack_tokens([1, i]), f"prompt {i}") for i in range(start, start + count)]


def ask(
    peer: PeerId = ALICE,
    *,
    version: int = 0,
    max_completions: int = 1000,
    session_id: str = "session-1",
) -> WorkRequest:
    return WorkRequest(
        peer=peer,
        session_id=session_id,
        applied_version=PolicyVersion(version),
        max_completions=max_completions,
    )


def accepted(*, version: int = 0, peer: PeerId = ALICE, reward: float = 1.0) -> AcceptedRollout:
    return AcceptedRollout(
        tokens=pack_tokens([1, STOP]),
        logprobs=pack_floats([-1.0, -2.0]),
        version=PolicyVersion(version),
        reward=reward,
        is_truncated=False,
        peer=peer,
    )


def rollout(
    *,
    group_id: int = 0,
    index: int = 0,
    version: int = 0,
    newest: int | None = None,
    tokens: tuple[int, ...] = (1, STOP),
    logprobs: tuple[float, ...] | None = None,
    finish: FinishReason = FinishReason.STOP,
) -> Rollout:
    return Rollout(
        group_id=group_id,
        sample_index=index,
        oldest_version=version,
        newest_version=version if newest is None else newest,
        tokens=pack_tokens(tokens),
        logprobs=pack_floats([-1.0] * len(tokens) if logprobs is None else logprobs),
        finish_reason=finish,
    )


def wanted(lease: Lease) -> list[tuple[int, int]]:
    return [(group.group_id, spec.index) for group in lease.groups for spec in group.samples]
