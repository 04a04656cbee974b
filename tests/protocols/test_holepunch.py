"""Where two peers behind routers are told to meet, and where nobody is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError
from protocols.holepunch import (
    MAX_BYTES,
    MAX_PLACES,
    MIN_PORT,
    PunchAccept,
    PunchGo,
    PunchRequest,
    TcpEndpoint,
    parse_place,
    places_of,
)

HOSTS = st.ip_addresses().filter(lambda a: not (a.is_multicast or a.is_unspecified))
PORTS = st.integers(MIN_PORT, 65535)


@given(HOSTS, PORTS)
def test_a_place_is_read_as_it_was_written(host: object, port: int) -> None:
    place = TcpEndpoint(str(host), port)

    assert parse_place(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "/ip4/203.0.113.7/tcp/22",
        "/ip4/203.0.113.7/tcp/65536",
        "/ip4/203.0.113.7/tcp/٤٠٠٠",
        "/ip4/203.0.113.7/udp/4001",
        "/ip4/224.0.0.1/tcp/4001",
        "/ip4/0.0.0.0/tcp/4001",
        "/ip4/2001:db8::1/tcp/4001",
        "/ip6/203.0.113.7/tcp/4001",
        "/dns4/example.org/tcp/4001",
        "/ip4/203.0.113.7/tcp/4001/p2p/x",
        "/ip4/203.0.113.7 /tcp/4001",
    ],
)
def test_nobody_is_sent_to_what_is_no_place(text: str) -> None:
    with pytest.raises(MalformedMessageError):
        parse_place(text)


def test_the_place_that_was_seen_comes_first_and_the_local_port_second() -> None:
    assert places_of(TcpEndpoint("203.0.113.7", 40_001), 5000) == (
        TcpEndpoint("203.0.113.7", 40_001),
        TcpEndpoint("203.0.113.7", 5000),
    )


def test_a_router_that_keeps_the_port_gives_one_place() -> None:
    assert places_of(TcpEndpoint("203.0.113.7", 5000), 5000) == (TcpEndpoint("203.0.113.7", 5000),)


@given(HOSTS, st.integers(1, 65535), st.integers(1, 65535))
def test_no_word_of_a_peer_leads_to_another_host_or_to_a_low_port(
    host: object, seen_port: int, told_port: int
) -> None:
    places = places_of(TcpEndpoint(str(host), seen_port), told_port)

    assert {place.host for place in places} <= {str(host)}
    assert all(place.port >= MIN_PORT for place in places)


@given(st.lists(st.tuples(HOSTS, PORTS), min_size=1, max_size=MAX_PLACES))
def test_all_places_fit_in_one_message(places: list[tuple[object, int]]) -> None:
    texts = tuple(str(TcpEndpoint(str(host), port)) for host, port in places)

    assert (
        decode(encode(PunchGo(texts), max_bytes=MAX_BYTES), PunchGo, max_bytes=MAX_BYTES).places
        == texts
    )


@pytest.mark.parametrize("port", [0, MIN_PORT - 1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    for message in (PunchRequest("peer", port), PunchAccept(port)):
        with pytest.raises(MalformedMessageError):
            decode(encode(message, max_bytes=MAX_BYTES), type(message), max_bytes=MAX_BYTES)
