import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.addresses import (
    group_by_peer,
    join_address,
    merge_addresses,
    split_address,
    with_ports,
)
from echo2swarm.network.base import PeerInfo
from protocols.errors import MalformedMessageError
from protocols.ids import peer_id_of
from protocols.ticket import MAX_ADDRESSES

A, B = (
    peer_id_of(Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32).public_key()) for i in (1, 2)
)
HOME = "/ip4/192.0.2.1/tcp/4001"
AWAY = "/dns4/example.org/tcp/4001"


@pytest.mark.parametrize("where", [HOME, AWAY, "/ip6/2001:db8::1/tcp/1"])
def test_an_address_comes_apart_and_together_again(where: str) -> None:
    assert split_address(join_address(A, where)) == (A, where)


@pytest.mark.parametrize(
    "address", ["", HOME, f"/p2p/{A}", f"{HOME}/p2p/", f"{HOME}/p2p/nobody", f"host/p2p/{A}"]
)
def test_what_is_no_address_of_a_peer_is_refused(address: str) -> None:
    with pytest.raises(MalformedMessageError):
        split_address(address)


def test_addresses_are_grouped_by_peer_in_order_without_repetition() -> None:
    addresses = [
        join_address(B, HOME),
        join_address(A, HOME),
        "nonsense",
        join_address(B, AWAY),
        join_address(B, HOME),
    ]

    assert group_by_peer(addresses) == (
        PeerInfo(peer=B, addresses=(HOME, AWAY)),
        PeerInfo(peer=A, addresses=(HOME,)),
    )


def test_merging_keeps_the_first_mentioned_first_and_is_bounded() -> None:
    assert merge_addresses(("a", "b"), ("b", "c"), ("a", "d")) == ("a", "b", "c", "d")
    assert len(merge_addresses(map(str, range(99)))) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("listen", "addresses", "again"),
    [
        (
            ["/ip4/0.0.0.0/tcp/0"],
            ["/ip4/192.0.2.2/tcp/37319/p2p/x", "/ip4/127.0.0.1/tcp/37319/p2p/x"],
            ("/ip4/0.0.0.0/tcp/37319",),
        ),
        (["/ip4/0.0.0.0/tcp/4150"], ["/ip4/192.0.2.2/tcp/4150"], ("/ip4/0.0.0.0/tcp/4150",)),
        (["/ip4/0.0.0.0/tcp/0"], [], ("/ip4/0.0.0.0/tcp/0",)),
        (
            ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.2/tcp/0"],
            ["/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.2/tcp/2"],
            ("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.2/tcp/0"),
        ),
    ],
    ids=["chosen by the system", "named", "unknown", "several"],
)
def test_a_port_that_was_chosen_is_asked_for_again(
    listen: list[str], addresses: list[str], again: tuple[str, ...]
) -> None:
    assert with_ports(listen, addresses) == again
