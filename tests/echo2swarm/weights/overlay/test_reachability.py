"""Who can be dialled: one success proves it, several failures for a while make it doubtful."""

import pytest

from echo2swarm.weights.overlay.reachability import FAILED_S, ReachBook
from protocols.heartbeat import Dial, LinkReport
from protocols.ids import PeerId
from protocols.status import Reachability

ALICE, BOB, CAROL, DAVE, EVE = (PeerId(name) for name in ("alice", "bob", "carol", "dave", "eve"))


def book() -> ReachBook:
    it = ReachBook()
    for peer in (ALICE, BOB, CAROL, DAVE, EVE):
        it.began(peer)
    return it


def tell(it: ReachBook, reporter: PeerId, peer: PeerId, dial: Dial, now_s: float) -> None:
    it.reported(reporter, [LinkReport(peer, 0, 0, dial)], now_s)


def is_reachable(it: ReachBook, now_s: float, *, num_neighbours: int = 4) -> Reachability:
    return it.reachability(ALICE, num_neighbours=num_neighbours, now_s=now_s)


def test_who_was_never_tried_is_unknown() -> None:
    assert is_reachable(book(), 1e6) is Reachability.UNKNOWN


def test_one_success_outweighs_any_number_of_failures() -> None:
    it = book()
    for peer in (BOB, CAROL, DAVE):
        tell(it, peer, ALICE, Dial.FAILED, 0.0)
    tell(it, EVE, ALICE, Dial.REACHED, 1.0)

    assert is_reachable(it, 1000.0) is Reachability.YES


def test_nobody_can_vouch_for_itself() -> None:
    it = book()
    tell(it, ALICE, ALICE, Dial.REACHED, 0.0)

    assert is_reachable(it, 0.0) is Reachability.UNKNOWN


@pytest.mark.parametrize(("num_neighbours", "needed"), [(1, 1), (2, 2), (3, 3), (12, 3)])
def test_as_many_must_have_failed_for_a_minute_as_there_are_but_three_are_enough(
    num_neighbours: int, needed: int
) -> None:
    it = book()
    for num, peer in enumerate((BOB, CAROL, DAVE)[:needed]):
        assert is_reachable(it, 500.0, num_neighbours=num_neighbours) is Reachability.UNKNOWN
        tell(it, peer, ALICE, Dial.FAILED, float(num))

    last_s = needed - 1
    early, late = (
        is_reachable(it, last_s + wait_s, num_neighbours=num_neighbours)
        for wait_s in (FAILED_S - 1, FAILED_S)
    )
    assert (early, late) == (Reachability.UNKNOWN, Reachability.NO)


def test_repeated_failures_count_from_the_first_and_a_success_in_between_ends_them() -> None:
    it = book()
    tell(it, BOB, ALICE, Dial.FAILED, 0.0)
    tell(it, BOB, ALICE, Dial.FAILED, 50.0)
    assert is_reachable(it, FAILED_S, num_neighbours=1) is Reachability.NO
    tell(it, BOB, ALICE, Dial.REACHED, 70.0)
    assert is_reachable(it, 70.0, num_neighbours=1) is Reachability.YES
    tell(it, BOB, ALICE, Dial.FAILED, 80.0)

    assert is_reachable(it, 80.0 + FAILED_S - 1, num_neighbours=1) is Reachability.UNKNOWN
    assert is_reachable(it, 80.0 + FAILED_S, num_neighbours=1) is Reachability.NO


def test_what_one_found_who_has_left_counts_no_more() -> None:
    it = book()
    tell(it, BOB, ALICE, Dial.REACHED, 0.0)
    it.ended(BOB)

    assert is_reachable(it, 1.0) is Reachability.UNKNOWN


def test_a_peer_that_starts_anew_is_tried_anew() -> None:
    it = book()
    tell(it, BOB, ALICE, Dial.FAILED, 0.0)
    assert is_reachable(it, 100.0, num_neighbours=1) is Reachability.NO
    it.began(ALICE)

    assert is_reachable(it, 100.0, num_neighbours=1) is Reachability.UNKNOWN


def test_reports_about_strangers_cost_no_memory() -> None:
    it = book()
    for number in range(1000):
        tell(it, BOB, PeerId(f"stranger-{number}"), Dial.FAILED, 0.0)

    assert len(it._failed_since_s) == 5
