"""Leases in the hand of a simulated node."""

from echo2swarm.simulate.workload import InHand
from protocols.leases import Lease, LeasedGroup, SampleSpec
from protocols.sampling import SamplingParams

SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=8, stop_token_ids=())


def lease(
    lease_id: str, *, num_groups: int = 1, min_version: int = 0, deadline_step: int = 9
) -> Lease:
    groups = tuple(
        LeasedGroup(
            group_id=100 * int(lease_id[-1]) + i,
            prompt_tokens=b"\0" * 4,
            samples=tuple(SampleSpec(index=j, seed=j) for j in range(4)),
        )
        for i in range(num_groups)
    )
    return Lease(
        lease_id=lease_id,
        min_version=min_version,
        deadline_step=deadline_step,
        groups=groups,
        sampling=SAMPLING,
    )


def test_two_leases_are_asked_for_and_no_more() -> None:
    hand = InHand()

    assert [hand.ask(0) for _ in range(3)] == [True, True, False]


def test_a_lease_in_hand_counts_as_one_that_is_asked_for() -> None:
    hand = InHand()
    hand.add(lease("lease-1"))

    assert [hand.ask(0) for _ in range(2)] == [True, False]


def test_questions_of_an_older_version_do_not_count() -> None:
    hand = InHand()
    hand.ask(0)
    hand.ask(0)

    assert [hand.ask(1) for _ in range(3)] == [True, True, False]
    assert hand.ask(2) is False  # four are overtaken by then


def test_leases_are_sampled_together_as_far_as_a_batch_has_room() -> None:
    hand = InHand()
    hand.add(lease("lease-1"))
    hand.add(lease("lease-2", num_groups=2))

    parts = hand.next_batch(0, 8)

    assert [(part.lease_id, len(part.groups)) for part in parts] == [
        ("lease-1", 1),
        ("lease-2", 1),
    ]
    assert hand.next_batch(0, 8) == []  # what is left of the second waits for its first part


def test_a_group_larger_than_a_batch_is_sampled_alone() -> None:
    hand = InHand()
    hand.add(lease("lease-1", num_groups=2))

    assert [len(part.groups) for part in hand.next_batch(0, 2)] == [1]


def test_a_lease_for_a_version_that_is_not_applied_waits() -> None:
    hand = InHand()
    hand.add(lease("lease-1", min_version=3))

    assert hand.next_batch(2, 8) == []
    assert len(hand.next_batch(3, 8)) == 1


def test_a_lease_ends_with_its_last_verdict() -> None:
    hand = InHand()
    hand.add(lease("lease-1", num_groups=2))
    (first,) = hand.next_batch(0, 4)
    hand.sampled(first)
    hand.judged("lease-1", 4)
    (second,) = hand.next_batch(0, 4)
    hand.sampled(second)

    assert hand.judged("lease-1", 2) is False
    assert hand.judged("lease-1", 2) is True
    assert hand.is_empty


def test_what_the_learner_gave_up_on_is_forgotten() -> None:
    hand = InHand()
    hand.add(lease("lease-1", deadline_step=4))
    (part,) = hand.next_batch(0, 8)

    assert hand.forget_late(4) is False
    assert hand.forget_late(5) is True
    assert hand.sampled(part) is False


def test_only_what_is_not_begun_is_handed_back() -> None:
    hand = InHand()
    hand.add(lease("lease-1"))
    hand.next_batch(0, 8)
    hand.add(lease("lease-2"))

    assert list(hand.hand_back_not_begun()) == ["lease-2"]
    assert not hand.is_empty
