"""Every way in which a rollout can be wrong has its own reason."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.leases.group_table import SampleStatus
from echo2swarm.scheduling.leases.lease_book import LeaseRecord
from learner.rollouts.checks import (
    ContentRules,
    VersionFacts,
    check_content,
    check_lease,
    check_membership,
    check_status,
    check_version,
)
from protocols.ids import GroupId, LeaseId, PolicyVersion
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout, RolloutSubmission
from tests.echo2swarm.scheduling.leases.samples import ALICE, BOB, STOP, rollout

RULES = ContentRules(max_new_tokens=4, stop_token_ids=frozenset({STOP, 9}), vocab_size=16)
FACTS = VersionFacts(next_step=6, max_staleness=2, published=frozenset({2, 4, 6}))


def lease(*, min_version: int = 4) -> LeaseRecord:
    return LeaseRecord(
        lease_id=LeaseId("lease-000001"),
        peer=ALICE,
        session_id="session-1",
        min_version=PolicyVersion(min_version),
        deadline_step=6,
        granted_at_s=0,
        expires_at_s=10,
        samples=frozenset({(GroupId(0), 0), (GroupId(0), 1)}),
    )


def submission(session_id: str = "session-1") -> RolloutSubmission:
    return RolloutSubmission("run", session_id, "lease-000001", (rollout(),), 1.0)


def test_a_submission_under_its_own_lease_passes() -> None:
    assert check_lease(submission(), ALICE, lease()) is None


def test_an_unknown_lease_is_refused() -> None:
    refusal = check_lease(submission(), ALICE, None)

    assert refusal is not None
    assert refusal.reason is Reason.UNKNOWN_LEASE


def test_the_lease_of_another_node_or_session_is_refused() -> None:
    refusals = [
        check_lease(submission(), BOB, lease()),
        check_lease(submission("session-2"), ALICE, lease()),
    ]

    assert [refusal and refusal.reason for refusal in refusals] == [Reason.NOT_YOUR_LEASE] * 2


def test_a_sample_that_the_lease_did_not_ask_for_is_refused() -> None:
    refusals = [
        check_membership(rollout(group_id=g, index=i), lease()) for g, i in ((1, 0), (0, 2))
    ]

    assert [refusal and refusal.reason for refusal in refusals] == [Reason.UNKNOWN_PROMPT] * 2
    assert check_membership(rollout(index=1), lease()) is None


@pytest.mark.parametrize(
    ("oldest", "newest", "expected"),
    [
        (4, 4, None),
        (4, 6, None),
        (6, 6, None),
        (7, 7, Reason.FROM_THE_FUTURE),
        (6, 7, Reason.FROM_THE_FUTURE),
        (6, 4, Reason.WRONG_VERSION),
        (2, 6, Reason.WRONG_VERSION),
        (5, 5, Reason.WRONG_VERSION),
        (4, 5, Reason.WRONG_VERSION),
    ],
)
def test_versions_must_be_published_and_asked_for(
    oldest: int, newest: int, expected: Reason | None
) -> None:
    refusal = check_version(rollout(version=oldest, newest=newest), lease(), FACTS)

    assert (refusal and refusal.reason) == expected


def test_a_rollout_that_came_too_late_is_stale() -> None:
    facts = VersionFacts(next_step=7, max_staleness=2, published=frozenset({6}))

    refusal = check_version(rollout(version=4), lease(), facts)

    assert refusal is not None
    assert refusal.reason is Reason.STALE


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (SampleStatus.OPEN, None),
        (SampleStatus.TAKEN, Reason.DUPLICATE),
        (SampleStatus.ANSWERED, Reason.ALREADY_ANSWERED),
        (SampleStatus.STALE, Reason.STALE),
        (SampleStatus.CLOSED, Reason.LEASE_EXPIRED),
    ],
)
def test_a_result_nobody_wants_any_more_is_told_why(
    status: SampleStatus, expected: Reason | None
) -> None:
    refusal = check_status(status)

    assert (refusal and refusal.reason) == expected


LENGTH = FinishReason.LENGTH


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (rollout(), None),
        (rollout(tokens=(1, 2, 3, 4), finish=LENGTH), None),
        (rollout(tokens=(1, 2, 3, 9)), None),
        (rollout(tokens=(1, STOP), logprobs=(0.0, 1e-6)), None),
        (rollout(tokens=(), logprobs=()), Reason.WRONG_SHAPE),
        (rollout(tokens=(1, 2, 3, 4, STOP)), Reason.WRONG_SHAPE),
        (rollout(tokens=(1, STOP), logprobs=(-1.0,)), Reason.WRONG_SHAPE),
        (rollout(logprobs=(-1.0, math.nan)), Reason.NON_FINITE_LOGPROB),
        (rollout(logprobs=(-math.inf, -1.0)), Reason.NON_FINITE_LOGPROB),
        (rollout(logprobs=(math.inf, -1.0)), Reason.NON_FINITE_LOGPROB),
        (rollout(logprobs=(-1.0, 0.01)), Reason.POSITIVE_LOGPROB),
        (rollout(logprobs=(-1e30, -1e30)), Reason.IMPOSSIBLE_LOGPROB),
        (rollout(logprobs=(-0.1, -50.0)), Reason.IMPOSSIBLE_LOGPROB),
        (rollout(logprobs=(-20.0, -20.0)), Reason.IMPOSSIBLE_LOGPROB),
        (rollout(logprobs=(-12.0, -1.0)), None),
        (rollout(tokens=(16, STOP)), Reason.TOKEN_OUT_OF_RANGE),
        (rollout(tokens=(1, 2)), Reason.WRONG_FINISH),
        (rollout(tokens=(STOP, 1, STOP)), Reason.WRONG_FINISH),
        (rollout(tokens=(1, 2, 3), finish=LENGTH), Reason.WRONG_FINISH),
        (rollout(tokens=(1, 2, 3, STOP), finish=LENGTH), Reason.WRONG_FINISH),
    ],
)
def test_content_is_checked(made: Rollout, expected: Reason | None) -> None:
    refusal = check_content(made, RULES)

    assert (refusal and refusal.reason) == expected


def test_arrays_that_are_no_whole_numbers_are_a_wrong_shape() -> None:
    made = Rollout(0, 0, 4, 4, b"\1\0\0", b"\1\0\0", FinishReason.STOP)

    refusal = check_content(made, RULES)

    assert refusal is not None
    assert refusal.reason is Reason.WRONG_SHAPE


@given(
    tokens=st.binary(max_size=64),
    logprobs=st.binary(max_size=64),
    finish=st.sampled_from(FinishReason),
)
def test_no_bytes_whatever_make_the_check_fail(
    tokens: bytes, logprobs: bytes, finish: FinishReason
) -> None:
    made = Rollout(0, 0, 4, 4, tokens, logprobs, finish)

    refusal = check_content(made, RULES)

    assert refusal is None or len(refusal.detail) <= 200
