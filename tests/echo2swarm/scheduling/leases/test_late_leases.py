"""Leases become late in time for others to help, and are looked at a few at a time."""

from math import inf

from echo2swarm.scheduling.leases.late_leases import LateLeases, late_at_s
from echo2swarm.scheduling.leases.lease_book import LeaseBook, LeaseState
from tests.echo2swarm.scheduling.leases.test_lease_book import lease


def late(
    *,
    slow_s: float | None = 4.0,
    typical_s: float | None = 1.0,
    rescue_s: float | None = 1.0,
    deadline_s: float = inf,
) -> float:
    return late_at_s(
        granted_at_s=100.0,
        expires_at_s=150.0,
        slow_s=slow_s,
        typical_s=typical_s,
        rescue_s=rescue_s,
        deadline_s=deadline_s,
    )


def test_a_lease_is_late_after_twice_what_few_of_its_node_exceed() -> None:
    assert late() == 108.0


def test_it_is_late_sooner_if_others_need_the_time_before_a_deadline() -> None:
    assert late(deadline_s=107.5) == 106.0


def test_but_never_while_it_may_well_be_on_time() -> None:
    assert late(deadline_s=101.0) == 105.0


def test_of_an_unknown_node_as_much_is_expected_as_of_others() -> None:
    assert late(slow_s=None) == 104.0


def test_where_nothing_is_known_its_time_limit_counts() -> None:
    assert late(slow_s=None, typical_s=None, rescue_s=None) == 150.0
    assert late(slow_s=100.0) == 150.0


def test_leases_are_late_from_their_time_on_and_while_they_last() -> None:
    book = LeaseBook()
    some = LateLeases(book)
    first, second = lease(1), lease(2)
    first.late_at_s, second.late_at_s = 5.0, 3.0
    for each in (first, second):
        book.add(each)
        some.watch(each)

    seen = [[each.lease_id for each in some.now_late(at_s)] for at_s in (2.0, 4.0, 6.0)]
    book.end(second, LeaseState.DONE, 6.0)
    after = [each.lease_id for each in some.now_late(7.0)]

    assert seen == [[], [second.lease_id], [second.lease_id, first.lease_id]]
    assert after == [first.lease_id]


def test_the_next_lease_to_be_late_is_an_active_one() -> None:
    book = LeaseBook()
    some = LateLeases(book)
    first, second = lease(1), lease(2)
    first.late_at_s, second.late_at_s = 3.0, 5.0
    for each in (first, second):
        book.add(each)
        some.watch(each)
    before = some.next_s()
    book.end(first, LeaseState.DONE, 1.0)

    assert (before, some.next_s()) == (3.0, 5.0)
