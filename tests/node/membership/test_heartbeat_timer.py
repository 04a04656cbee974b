"""When heartbeats are sent."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.membership.heartbeat_timer import LOST_AFTER_FAILURES, MIN_GAP_S, Contact, HeartbeatPacer


def beaten(now_s: float, *, next_heartbeat_s: float = 5) -> HeartbeatPacer:
    pacer = HeartbeatPacer()
    pacer.sent(now_s)
    assert pacer.answered(now_s, next_heartbeat_s=next_heartbeat_s) is Contact.FOUND
    return pacer


def test_the_first_heartbeat_is_due_at_once_and_finds_the_learner() -> None:
    pacer = HeartbeatPacer()
    assert pacer.due_s == -inf
    pacer.sent(10)
    assert pacer.due_s == inf
    assert pacer.answered(10.5, next_heartbeat_s=2) is Contact.FOUND
    assert pacer.due_s == 12.5
    pacer.sent(12.5)
    assert pacer.answered(13, next_heartbeat_s=2) is Contact.SAME


def test_a_change_is_told_at_once_but_not_in_a_burst() -> None:
    pacer = beaten(10)

    pacer.changed()

    assert pacer.due_s == pytest.approx(10 + MIN_GAP_S)


def test_a_change_while_a_heartbeat_is_on_its_way_makes_another() -> None:
    pacer = HeartbeatPacer()
    pacer.sent(10)
    pacer.changed()
    pacer.answered(11, next_heartbeat_s=5)

    assert pacer.due_s <= 11


def test_the_learner_is_lost_after_some_failures_and_found_again() -> None:
    pacer = beaten(0)

    contacts = []
    for now_s in range(LOST_AFTER_FAILURES + 1):
        pacer.sent(now_s)
        contacts.append(pacer.failed(now_s, retry_s=3))
        assert pacer.due_s == now_s + 3

    assert contacts == [Contact.SAME] * (LOST_AFTER_FAILURES - 1) + [Contact.LOST, Contact.SAME]
    assert not pacer.has_learner
    pacer.sent(20)
    assert pacer.answered(20, next_heartbeat_s=5) is Contact.FOUND
    pacer.sent(25)
    assert pacer.failed(25, retry_s=1) is Contact.SAME  # failures count anew


@given(st.lists(st.tuples(st.sampled_from(["change", "ok", "fail"]), st.floats(0, 100))))
def test_it_is_found_and_lost_in_turns(history: list[tuple[str, float]]) -> None:
    pacer = HeartbeatPacer()
    has_learner = False
    for what, now_s in history:
        if what == "change":
            pacer.changed()
            continue
        pacer.sent(now_s)
        contact = (
            pacer.answered(now_s, next_heartbeat_s=1)
            if what == "ok"
            else pacer.failed(now_s, retry_s=1)
        )
        if contact is Contact.FOUND:
            assert not has_learner
        if contact is Contact.LOST:
            assert has_learner
        has_learner = {Contact.FOUND: True, Contact.LOST: False}.get(contact, has_learner)
        assert pacer.has_learner == has_learner
        assert pacer.due_s < inf
