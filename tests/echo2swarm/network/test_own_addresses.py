"""Addresses that an owner types: what nobody could use is refused at once, in one line."""

import pytest

from echo2swarm.network.own_addresses import check_advertised, check_listen, look_up
from echo2swarm.system.errors import UsageError


@pytest.mark.parametrize(
    "address", ["/ip4/0.0.0.0/tcp/0", "/ip4/127.0.0.1/tcp/4150", "/ip6/::/tcp/65535"]
)
def test_what_a_socket_takes_may_be_listened_on(address: str) -> None:
    check_listen(address)


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/127.0.0.1",
        "/ip4/127.0.0.1/tcp",
        "/ip4/127.0.0.1/tcp/",
        "/ip4/127.0.0.1/tcp/70000",
        "/ip4/127.0.0.1/udp/4150/quic-v1",
        "/ip4/localhost/tcp/4150",
        "/ip4/::/tcp/4150",
        "/ip6/0.0.0.0/tcp/4150",
        "/dns4/localhost/tcp/4150",
        "/",
        "",
    ],
)
def test_nothing_else_may_be_listened_on(address: str) -> None:
    with pytest.raises(UsageError, match="expected addresses like"):
        check_listen(address)


@pytest.mark.parametrize(
    "address",
    ["/ip4/203.0.113.9/tcp/4150", "/ip6/2001:db8::9/tcp/443", "/dns4/a.example/tcp/4150"],
)
def test_what_can_be_dialled_may_be_advertised(address: str) -> None:
    check_advertised(address)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("/ip4/127.0.0.1", "expected addresses like"),
        ("/ip4/0.0.0.0/tcp/4150", "no machine is at 0.0.0.0"),
        ("/ip6/::/tcp/4150", "no machine is at ::"),
        ("/ip4/1.2.3.4/tcp/0", "expected a port from 1"),
        ("/ip4/1.2.3.4/tcp/70000", "expected a port from 1"),
        ("/ip4/1.2.3.4/tcp/4150/ws", "expected addresses like"),
        ("/ip4/1.2.3.4/tcp/4150/p2p/12D3KooW", "expected addresses like"),
        ("/ip4/attic.example/tcp/4150", "expected addresses like"),
        ("/dnsaddr/attic.example", "expected addresses like"),
        ("attic.example:4150", "expected addresses like"),
    ],
)
def test_what_nobody_can_dial_is_not_advertised(address: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_advertised(address)


def test_a_node_may_not_advertise_a_port_that_others_would_not_dial() -> None:
    check_advertised("/ip4/1.2.3.4/tcp/1024", by_node=True)
    with pytest.raises(UsageError, match="expected a port from 1024"):
        check_advertised("/ip4/1.2.3.4/tcp/443", by_node=True)


def test_names_are_looked_up_as_this_system_does_it() -> None:
    addresses = ("/ip4/1.2.3.4/tcp/4150", "/dns4/localhost/tcp/4151")

    assert look_up(addresses) == ("/ip4/1.2.3.4/tcp/4150", "/ip4/127.0.0.1/tcp/4151")


@pytest.mark.parametrize("name", ["nobody..here", "x" * 70, "\udcff"])
def test_a_name_that_there_can_not_be_is_one_clear_error(name: str) -> None:
    with pytest.raises(UsageError, match="does not know the name"):
        look_up([f"/dns4/{name}/tcp/4150"])
