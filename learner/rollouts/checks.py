"""What a submitted rollout must be like, without I/O; cheap checks come first.

Every check has its own reason code, which the contributor sees. The reward is not among
what is checked: the learner computes it. Specification: ``docs/specs/rollouts.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

import msgspec

from echo2swarm.scheduling.leases.group_table import SampleStatus
from echo2swarm.scheduling.leases.lease_book import LeaseRecord, SampleKey
from echo2swarm.scheduling.staleness import Freshness, judge_staleness
from learner.ledger.refusal import Refusal
from learner.rollouts.possible_logprobs import why_impossible
from protocols.errors import MalformedMessageError
from protocols.heartbeat import SessionId
from protocols.ids import GroupId, PeerId
from protocols.leases import LeaseName
from protocols.packed import unpack_floats, unpack_tokens
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout, RolloutSubmission
from protocols.ticket import RunName

MAX_LOGPROB: Final = 1e-4
"""Rounding may push the logprob of a certain token this far above 0."""

_NOT_WANTED: Final = {
    SampleStatus.TAKEN: (Reason.DUPLICATE, "there is a result of this sample already"),
    SampleStatus.ANSWERED: (
        Reason.ALREADY_ANSWERED,
        "another node was asked too, as this lease was late, and was faster; not held against you",
    ),
    SampleStatus.STALE: (Reason.STALE, "other completions of its prompt became too old"),
    SampleStatus.CLOSED: (Reason.LEASE_EXPIRED, "its prompt is not needed any more"),
}


class SubmissionHead(msgspec.Struct, frozen=True):
    """What of a submission says whether the rest is worth reading: anybody can send megabytes."""

    run_id: RunName
    session_id: SessionId
    lease_id: LeaseName


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentRules:
    """What completions of this run look like."""

    max_new_tokens: int
    stop_token_ids: frozenset[int]
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """What the learner knows about versions when a rollout arrives."""

    next_step: int
    max_staleness: int
    published: frozenset[int]
    """The published versions that may still be of use."""


def sample_key_of(rollout: Rollout) -> SampleKey:
    """Return the sample that a rollout claims to be."""
    return GroupId(rollout.group_id), rollout.sample_index


def check_lease(
    submission: SubmissionHead | RolloutSubmission, peer: PeerId, lease: LeaseRecord | None
) -> Refusal | None:
    """Check that the submission is the answer to a lease of this very node and session."""
    if lease is None:
        return Refusal(
            Reason.UNKNOWN_LEASE, f"no lease {submission.lease_id!r}, or it ended long ago"
        )
    if lease.peer != peer:
        return Refusal(Reason.NOT_YOUR_LEASE, "this lease was granted to another node")
    if lease.session_id != submission.session_id:
        return Refusal(Reason.NOT_YOUR_LEASE, "this lease was granted to an earlier session")
    return None


def check_membership(rollout: Rollout, lease: LeaseRecord) -> Refusal | None:
    """Check that the lease asked for this sample."""
    if sample_key_of(rollout) not in lease.samples:
        return Refusal(
            Reason.UNKNOWN_PROMPT,
            f"sample {rollout.sample_index} of group {rollout.group_id} is not in the lease",
        )
    return None


def check_version(rollout: Rollout, lease: LeaseRecord, facts: VersionFacts) -> Refusal | None:
    """Check what the rollout says of the versions that sampled it."""
    oldest, newest = rollout.oldest_version, rollout.newest_version
    newest_published = max(facts.published, default=-1)
    if max(oldest, newest) > newest_published:
        return Refusal(
            Reason.FROM_THE_FUTURE,
            f"version {max(oldest, newest)}, the newest published is {newest_published}",
        )
    if oldest > newest:
        return Refusal(Reason.WRONG_VERSION, f"oldest version {oldest}, newest {newest}")
    if oldest < lease.min_version:
        return Refusal(
            Reason.WRONG_VERSION, f"version {oldest}, the lease asks for {lease.min_version}"
        )
    fresh = judge_staleness(version=oldest, step=facts.next_step, max_staleness=facts.max_staleness)
    if fresh is Freshness.STALE:
        return Refusal(
            Reason.STALE,
            f"version {oldest} at step {facts.next_step}, at most {facts.max_staleness} behind",
        )
    for version in (oldest, newest):
        if version not in facts.published:
            return Refusal(Reason.WRONG_VERSION, f"version {version} was never published")
    return None


def check_status(status: SampleStatus) -> Refusal | None:
    """Check that a result of this sample is still wanted."""
    found = _NOT_WANTED.get(status)
    return None if found is None else Refusal(*found)


def check_content(rollout: Rollout, rules: ContentRules) -> Refusal | None:
    """Check tokens, logprobs and the end; reads all of both, so it may take a moment."""
    if len(rollout.tokens) != len(rollout.logprobs):
        return Refusal(
            Reason.WRONG_SHAPE,
            f"{len(rollout.tokens)} bytes of tokens, {len(rollout.logprobs)} of logprobs",
        )
    try:
        tokens = unpack_tokens(rollout.tokens)
        logprobs = unpack_floats(rollout.logprobs)
    except MalformedMessageError as exc:
        return Refusal(exc.reason, str(exc))
    if not 1 <= len(tokens) <= rules.max_new_tokens:
        return Refusal(
            Reason.WRONG_SHAPE, f"{len(tokens)} tokens, expected 1 to {rules.max_new_tokens}"
        )
    return (
        _check_logprobs(logprobs, rules.vocab_size)
        or _check_tokens(tokens, rules)
        or _check_finish(tokens, rollout.finish_reason, rules)
    )


def _check_logprobs(logprobs: Sequence[float], vocab_size: int) -> Refusal | None:
    for position, logprob in enumerate(logprobs):
        if not isfinite(logprob):
            return Refusal(Reason.NON_FINITE_LOGPROB, f"{logprob} at position {position}")
        if logprob > MAX_LOGPROB:
            return Refusal(Reason.POSITIVE_LOGPROB, f"{logprob:.6g} at position {position}")
    if why := why_impossible(logprobs, vocab_size):
        return Refusal(Reason.IMPOSSIBLE_LOGPROB, why)
    return None


def _check_tokens(tokens: Sequence[int], rules: ContentRules) -> Refusal | None:
    if (largest := max(tokens)) >= rules.vocab_size:
        return Refusal(
            Reason.TOKEN_OUT_OF_RANGE, f"token {largest}, the vocabulary has {rules.vocab_size}"
        )
    return None


def _check_finish(
    tokens: Sequence[int], finish: FinishReason, rules: ContentRules
) -> Refusal | None:
    first_stop = next(
        (i for i, token in enumerate(tokens, start=1) if token in rules.stop_token_ids), None
    )
    match finish:
        case FinishReason.STOP if first_stop != len(tokens):
            where = "none" if first_stop is None else f"token {first_stop}"
            detail = f"finished by stop after {len(tokens)} tokens, but the first stop is {where}"
        case FinishReason.LENGTH if first_stop is not None:
            detail = f"finished by length, but token {first_stop} is a stop"
        case FinishReason.LENGTH if len(tokens) != rules.max_new_tokens:
            detail = f"finished by length after {len(tokens)} of {rules.max_new_tokens} tokens"
        case _:
            return None
    return Refusal(Reason.WRONG_FINISH, detail)
