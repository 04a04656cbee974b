from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.connection_seats import (
    FORGIVEN_S,
    MAX_SEATS_PER_PEER,
    OWN_BURST,
    SHUT_OUT_S,
    ConnectionSeat,
    ConnectionSeats,
)
from protocols.ids import PeerId

ATTACKER, HONEST = "192.0.2.7", "198.51.100.9"


def stranger(number: int, address: str = ATTACKER) -> ConnectionSeat:
    return ConnectionSeat(address, is_dialled=False, peer=PeerId(f"stranger {number}"))


def newcomer(address: str = ATTACKER) -> ConnectionSeat:
    return ConnectionSeat(address, is_dialled=False)


def seats_of(num_seats: int, *protected: int) -> ConnectionSeats:
    """Return empty seats, and which strangers the application vouches for."""
    names = {f"stranger {i}" for i in protected}
    return ConnectionSeats(num_seats, is_protected=names.__contains__)


def crowded(num_seats: int, *addresses: str, protected: Iterable[int] = ()) -> ConnectionSeats:
    """Return seats that strangers from ``addresses`` have taken, all of them."""
    seats = seats_of(num_seats, *protected)
    for i in range(num_seats):
        assert seats.take(stranger(i, addresses[i % len(addresses)])) is None
    return seats


def test_nobody_has_to_go_while_there_is_room_however_many_share_an_address() -> None:
    crowded(64, ATTACKER)


def test_the_oldest_of_a_crowd_makes_room_for_a_newcomer_from_the_same_address() -> None:
    seats = crowded(64, ATTACKER)

    victim = seats.take(newcomer())

    assert victim is not None
    assert victim.peer == "stranger 0"


def test_the_network_with_most_connections_makes_room() -> None:
    seats = seats_of(10)
    honest = [stranger(i, f"198.51.{i}.1") for i in range(4)]
    for seat in honest:
        seats.take(seat)
    for i in range(6):
        seats.take(stranger(10 + i, f"192.0.2.{i}"))

    victims = [seats.take(stranger(20 + i, f"192.0.2.{50 + i}")) for i in range(20)]

    assert all(victim is not None and victim not in honest for victim in victims)


def test_of_one_address_the_identity_with_most_connections_makes_room() -> None:
    seats = seats_of(8)
    honest = stranger(99)
    seats.take(honest)
    for i in range(7):
        seats.take(stranger(i // 4))

    victim = seats.take(newcomer())

    assert victim is not None
    assert victim.peer == "stranger 0"


def test_whom_the_application_vouches_for_stays() -> None:
    seats = seats_of(8, 99)
    known = stranger(99)
    seats.take(known)

    victims = [seats.take(stranger(i)) for i in range(50)]

    assert known not in victims


def test_newcomers_get_in_even_if_the_application_vouches_for_everybody() -> None:
    seats = crowded(64, ATTACKER, protected=range(64))
    new = newcomer()

    assert seats.take(new) is not new
    seats.identify(new, PeerId("new"))
    assert seats.take(newcomer()) is not new


def test_a_protected_peer_has_no_more_than_its_two_connections_for_sure() -> None:
    seats = seats_of(8, 1)
    own = [stranger(1) for _ in range(8)]
    for seat in own:
        seats.take(seat)

    victims = [seats.take(stranger(10 + i)) for i in range(6)]

    assert own[:2] == [seat for seat in own if seat not in victims]


def test_handshakes_that_are_not_over_leave_the_others_alone() -> None:
    seats = crowded(60, ATTACKER)
    waiting = [newcomer(f"203.0.113.{i % 200}") for i in range(500)]

    victims = [seats.take(seat) for seat in waiting]

    assert sum(victim is not None and victim.peer is not None for victim in victims) <= 8
    assert len(seats) == 60


def test_others_handshakes_and_our_own_do_not_displace_each_other() -> None:
    seats = seats_of(64)
    ours = ConnectionSeat(HONEST, is_dialled=True)
    seats.take(ours)

    assert all(seats.take(newcomer(HONEST)) is not ours for _ in range(200))


def test_one_peer_has_so_many_connections_and_of_more_the_oldest_goes() -> None:
    seats = seats_of(64)
    own = [newcomer() for _ in range(MAX_SEATS_PER_PEER + 1)]
    victims = []
    for seat in own:
        seats.take(seat)
        victims.append(seats.identify(seat, PeerId("p")))

    assert victims == [None] * MAX_SEATS_PER_PEER + [own[0]]


def test_an_ipv6_network_counts_as_one_and_a_mapped_address_as_what_it_maps() -> None:
    assert ConnectionSeat("2001:db8:1:2:3::4", is_dialled=False).host == "2001:db8:1:2::/64"
    assert ConnectionSeat("2001:db8:1:2:3::4", is_dialled=False).subnet == "2001:db8:1::/48"
    assert ConnectionSeat("::ffff:192.0.2.7", is_dialled=False).subnet == "192.0.2.0/24"
    assert ConnectionSeat("fe80::1%eth0", is_dialled=False).host == "fe80::/64"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from([ATTACKER, HONEST]), st.booleans(), st.booleans()
        )
    )
)
def test_there_are_never_more_connections_than_seats_and_a_seat_goes_once(
    arrivals: list[tuple[int, str, bool, bool]],
) -> None:
    seats = seats_of(8, 0, 1)
    gone: list[ConnectionSeat] = []
    for number, address, is_dialled, is_identified in arrivals:
        seat = ConnectionSeat(address, is_dialled=is_dialled)
        victims = [seats.take(seat)]
        if is_identified and seat not in victims:
            victims.append(seats.identify(seat, PeerId(f"stranger {number}")))
        gone += [victim for victim in victims if victim is not None]
        assert len(seats) <= 8

    assert len(gone) == len(set(gone))


def test_where_a_flood_came_from_is_shut_out_for_a_while_and_nobody_else() -> None:
    seats = seats_of(8)
    seats.flooded(ConnectionSeat("192.0.2.1", is_dialled=False), 100.0)
    again, other = (ConnectionSeat(f"192.0.2.{n}", is_dialled=False) for n in (1, 2))
    dialled = ConnectionSeat("192.0.2.1", is_dialled=True)

    assert seats.is_shut_out(again, 100.0 + 0.9 * SHUT_OUT_S)
    assert not seats.is_shut_out(again, 100.0 + SHUT_OUT_S)
    assert not seats.is_shut_out(other, 100.0)
    assert not seats.is_shut_out(dialled, 100.0), "whom we dial is our own choice"


def test_a_host_that_has_most_takes_the_place_of_its_own_only_so_often() -> None:
    seats = crowded(8, *[ATTACKER] * 8)

    tries = [seats.may_try(newcomer(ATTACKER), 100.0) for _ in range(2 * OWN_BURST)]

    assert tries == [True] * OWN_BURST + [False] * OWN_BURST
    assert seats.may_try(newcomer(HONEST), 100.0)
    assert seats.may_try(newcomer(ATTACKER), 101.0)


def test_while_there_are_seats_everybody_may_try() -> None:
    seats = seats_of(9)
    for i in range(8):
        seats.take(stranger(i))

    assert all(seats.may_try(newcomer(ATTACKER), 100.0) for _ in range(2 * OWN_BURST))


def test_each_flood_that_follows_is_shut_out_for_twice_as_long_and_is_forgiven_in_time() -> None:
    seats, now_s, lengths = seats_of(8), 100.0, list[float]()
    for pause_s in (1.0, 1.0, FORGIVEN_S + 1, 1.0):
        seats.flooded(newcomer(), now_s)
        seats.flooded(newcomer(), now_s + 0.1)  # Another connection of the same flood.
        until_s = now_s
        while seats.is_shut_out(newcomer(), until_s):
            until_s += 1.0
        lengths.append(until_s - now_s)
        now_s = until_s + pause_s

    assert lengths == [SHUT_OUT_S, 2 * SHUT_OUT_S, 4 * SHUT_OUT_S, SHUT_OUT_S]
