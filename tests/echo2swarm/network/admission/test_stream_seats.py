"""Many identities keep nobody out: whoever holds most gives way, and the proven have a share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.admission import stream_seats as seats_module
from echo2swarm.network.admission.stream_seats import Seat, Seats
from protocols.ids import PeerId


class Table:
    """Seats, and who was evicted."""

    def __init__(self, *, max_seats: int = 8, max_per_peer: int = 4, proven: str = "") -> None:
        self.evicted: list[str] = []
        self.seats = Seats(
            max_seats=max_seats, max_per_peer=max_per_peer, is_proven=lambda peer: peer in proven
        )

    def take(self, peer: str, *, whole: bool = False) -> Seat | None:
        seat = self.seats.take(PeerId(peer), lambda: self.evicted.append(peer))
        if seat is None or (whole and not self.seats.begin(seat)):
            return None
        return seat


def test_the_oldest_unread_of_whoever_holds_most_gives_way() -> None:
    table = Table(max_seats=8)
    table.take("c")
    first_of_a = table.take("a")
    for peer in "bbaa":
        table.take(peer)

    assert table.take("d") is not None
    assert table.evicted == ["a"]
    assert first_of_a is not None
    assert first_of_a.is_evicted
    assert not table.seats.begin(first_of_a), "what was evicted can't go to work"


def test_one_who_holds_most_gets_no_more_when_there_is_no_room() -> None:
    table = Table(max_seats=8)
    for peer in "aaabcd":
        table.take(peer)

    assert table.take("a") is None
    assert table.evicted == []


def test_nobody_has_more_than_a_peer_may_of_both_kinds_together() -> None:
    table = Table(max_per_peer=2)
    table.take("a", whole=True)
    assert table.take("a") is not None

    assert table.take("a") is None


def test_requests_on_their_way_take_no_room_from_those_at_work() -> None:
    table = Table(max_seats=8)
    for peer in "aaabbb":
        table.take(peer)

    assert table.take("c", whole=True) is not None
    assert table.seats.num_at_work == 1


def test_work_gives_way_only_to_who_has_less() -> None:
    table = Table(max_seats=4)
    for peer in "aab":
        table.take(peer, whole=True)

    assert table.take("b", whole=True) is None, "both would have two"
    assert table.take("c", whole=True) is not None
    assert table.evicted == ["a"]
    assert table.take("d", whole=True) is None, "nobody has two"


def test_proven_peers_have_a_share_and_go_before_strangers() -> None:
    table = Table(max_seats=8, proven="HK")
    for peer in "abcdefg":
        table.take(peer)
    assert table.seats.num_unread == 6, "a quarter is kept"

    for _ in range(4):
        assert table.take("H") is not None
    assert table.seats.num_unread == 8
    assert table.evicted[1:] == ["b", "c"]

    for peer in "wxyz" * 5:
        table.take(peer)
    assert "H" not in table.evicted


def test_a_stranger_comes_in_though_the_proven_fill_everything() -> None:
    table = Table(max_seats=4, proven="HK")
    for peer in "HHHK":
        table.take(peer)

    assert table.take("stranger") is not None
    assert table.evicted == ["H"]


def test_who_sends_most_of_what_is_not_whole_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats_module, "MAX_STRANGERS_UNREAD_BYTES", 100)
    monkeypatch.setattr(seats_module, "MAX_UNREAD_BYTES", 300)
    table = Table(max_seats=16, proven="HK")
    taken = [table.take(peer) for peer in "HKaab"]
    for seat, num_bytes in zip(taken, (150, 20, 40, 45, 10), strict=True):
        assert seat is not None
        table.seats.arrived(seat, num_bytes)
    assert table.evicted == []

    b = taken[-1]
    assert b is not None
    table.seats.arrived(b, 30)

    assert table.evicted == ["a"]


Step = tuple[str, int]


@given(st.lists(st.tuples(st.sampled_from("abcHK"), st.integers(0, 3)), max_size=200))
def test_limits_hold_and_a_newcomer_always_gets_to_send(steps: list[Step]) -> None:
    table = Table(max_seats=8, max_per_peer=4, proven="HK")
    live: list[Seat] = []
    for peer, what in steps:
        if what < 2 or not live:
            seat = table.take(peer)
            live += [seat] if seat else []
        elif what == 2:
            table.seats.begin(live[0])
            live.append(live.pop(0))
        else:
            table.seats.leave(live.pop(0))
        assert table.seats.num_unread <= 8
        assert table.seats.num_at_work <= 8
    assert table.take("newcomer") is not None
