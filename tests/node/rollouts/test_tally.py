"""What the contributor is told about refusals."""

from hypothesis import given
from hypothesis import strategies as st

from node.rollouts.tally import RefusalNotice, RefusalTally
from protocols.reasons import Reason
from protocols.rollouts import RolloutVerdict


def verdict(reason: Reason | None, detail: str = "") -> RolloutVerdict:
    return RolloutVerdict(1, 0, reason, detail)


def test_the_first_refusal_of_each_reason_is_told_with_its_detail() -> None:
    tally = RefusalTally()

    notices = tally.judged(
        [
            verdict(None),
            verdict(Reason.STALE, "3 old"),
            verdict(Reason.STALE, "4 old"),
            verdict(Reason.WRONG_SHAPE, "5 tokens, 4 logprobs"),
        ]
    )

    assert notices == [
        RefusalNotice(Reason.STALE, "3 old", 1),
        RefusalNotice(Reason.WRONG_SHAPE, "5 tokens, 4 logprobs", 1),
    ]
    assert tally.num_accepted == 1
    assert tally.refused == {"stale": 2, "wrong_shape": 1}


def test_a_rollout_that_another_node_was_faster_with_is_no_refusal() -> None:
    tally = RefusalTally()

    assert tally.judged([verdict(Reason.ALREADY_ANSWERED), verdict(None)]) == []
    assert (tally.num_accepted, tally.num_refused, tally.num_overtaken) == (1, 0, 1)


def test_a_whole_submission_counts_with_all_its_rollouts() -> None:
    tally = RefusalTally()

    assert tally.refused_whole(Reason.UNKNOWN_LEASE, "no lease", 16) == [
        RefusalNotice(Reason.UNKNOWN_LEASE, "no lease", 16)
    ]
    assert tally.num_refused == 16


@given(st.lists(st.integers(1, 50), min_size=1, max_size=50))
def test_the_number_of_lines_grows_with_the_logarithm_of_the_refusals(sizes: list[int]) -> None:
    tally = RefusalTally()

    notices = [n for size in sizes for n in tally.refused_whole(Reason.STALE, "", size)]

    assert 1 <= len(notices) <= len(str(sum(sizes)))
    assert tally.num_refused == sum(sizes)
