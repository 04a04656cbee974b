"""Which addresses that peers name are dialled: decided without a network."""

import ipaddress
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.admission.dial_policy import (
    DialPolicy,
    Kind,
    kind_of,
    objection,
    reach_of,
    target_of,
)
from protocols.ids import PeerId

PUBLIC = "/ip4/8.8.4.4/tcp/4150"
A, B = PeerId("A"), PeerId("B")


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("8.8.8.8", Kind.GLOBAL),
        ("2600::1", Kind.GLOBAL),
        ("10.1.2.3", Kind.PRIVATE),
        ("172.31.0.1", Kind.PRIVATE),
        ("192.168.1.1", Kind.PRIVATE),
        ("fd12::1", Kind.PRIVATE),
        ("100.64.0.1", Kind.SHARED),
        ("127.9.9.9", Kind.LOOPBACK),
        ("::1", Kind.LOOPBACK),
        ("169.254.169.254", Kind.LINK_LOCAL),
        ("fe80::1", Kind.LINK_LOCAL),
        ("fe80::1%eth0", Kind.LINK_LOCAL),
        ("224.0.0.251", Kind.NOWHERE),
        ("ff02::1", Kind.NOWHERE),
        ("0.0.0.0", Kind.NOWHERE),  # noqa: S104 - nothing listens there
        ("::", Kind.NOWHERE),
        ("255.255.255.255", Kind.NOWHERE),
        ("240.0.0.1", Kind.RESERVED),
        ("203.0.113.7", Kind.RESERVED),
        ("198.18.0.1", Kind.RESERVED),
        ("2001:db8::1", Kind.RESERVED),
    ],
)
def test_every_kind_of_network_is_known(address: str, kind: Kind) -> None:
    assert kind_of(ipaddress.ip_address(address)) is kind


@given(inner=st.ip_addresses(v=4))
def test_an_ipv4_address_in_the_clothes_of_ipv6_is_of_its_own_kind(
    inner: ipaddress.IPv4Address,
) -> None:
    mapped = ipaddress.ip_address(f"::ffff:{inner}")
    translated = ipaddress.ip_address(int(ipaddress.ip_address("64:ff9b::")) | int(inner))
    six_to_four = ipaddress.ip_address((0x2002 << 112) | (int(inner) << 80) | 1)

    assert {kind_of(each) for each in (mapped, translated, six_to_four)} == {kind_of(inner)}


@given(ip=st.ip_addresses(), port=st.integers(1024, 65535))
def test_of_a_public_run_nothing_but_global_addresses_is_dialled(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    why = objection(f"/ip{ip.version}/{ip}/tcp/{port}", reach_of([PUBLIC]))

    assert (why == "") == (kind_of(ip) is Kind.GLOBAL)


@pytest.mark.parametrize(
    ("run_at", "allowed", "refused"),
    [
        (PUBLIC, "/ip4/1.1.1.1/tcp/4150", "/ip4/10.0.0.7/tcp/4150"),
        ("/ip4/10.0.0.1/tcp/4150", "/ip4/192.168.0.7/tcp/4150", "/ip4/127.0.0.1/tcp/4150"),
        ("/ip4/10.0.0.1/tcp/4150", "/ip4/8.8.8.8/tcp/4150", "/ip4/100.64.0.1/tcp/4150"),
        ("/ip4/127.0.0.1/tcp/4150", "/ip4/127.0.0.2/tcp/4150", "/ip4/10.0.0.7/tcp/4150"),
        ("/ip4/127.0.0.1/tcp/4150", "/ip4/127.0.0.2/tcp/4150", "/ip6/::1/tcp/4150"),
        ("/ip4/100.64.0.9/tcp/4150", "/ip4/100.99.0.1/tcp/4150", "/ip4/10.0.0.7/tcp/4150"),
        ("/ip6/fd00::1/tcp/4150", "/ip6/fd00::2/tcp/4150", "/ip4/10.0.0.7/tcp/4150"),
        ("/dns4/learner.example/tcp/4150", "/ip4/1.1.1.1/tcp/4150", "/ip4/127.0.0.1/tcp/4150"),
        ("/ip4/224.0.0.1/tcp/4150", "/ip4/1.1.1.1/tcp/4150", "/ip4/224.0.0.1/tcp/4150"),
    ],
)
def test_peers_may_be_where_the_learner_is_and_in_the_open(
    run_at: str, allowed: str, refused: str
) -> None:
    policy = DialPolicy([run_at])

    assert policy.objection(allowed) == ""
    assert policy.objection(refused) != ""


def test_a_virtual_network_on_the_machine_of_a_public_learner_opens_nothing() -> None:
    policy = DialPolicy([PUBLIC, "/ip4/172.17.0.1/tcp/4150"])

    assert policy.objection("/ip4/192.168.1.1/tcp/8080") != ""


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/8.8.8.8/tcp/1023",
        "/ip4/8.8.8.8/tcp/22",
        "/ip4/8.8.8.8/tcp/0",
        "/ip4/8.8.8.8/tcp/65536",
        "/ip4/8.8.8.8/tcp/99999999999999999999",
        "/ip4/8.8.8.8/tcp/-1",
        "/ip4/8.8.8.8/tcp/٢٠٠٠",
        "/ip4/8.8.8.8/udp/4150/quic-v1",
        "/ip4/8.8.8.8/tcp/4150/ws",
        "/ip4/8.8.8.8",
        "/ip6/8.8.8.8/tcp/4150",
        "/ip4/0x7f000001/tcp/4150",
        "/ip4/010.0.0.1/tcp/4150",
        "/dns4/localhost/tcp/4150",
        "/dns/metadata.google.internal/tcp/4150",
        "/dnsaddr/example.org",
        "/unix/tmp/socket",
        "",
    ],
)
def test_names_low_ports_and_other_forms_are_not_taken_from_peers(address: str) -> None:
    assert DialPolicy([PUBLIC]).objection(address) != ""


@given(text=st.text(max_size=60) | st.from_regex(r"\A/ip[46]/.{0,20}/tcp/.{0,8}\Z"))
def test_no_text_does_worse_than_be_refused(text: str) -> None:
    assert (target_of(text) is not None) or objection(text, reach_of([PUBLIC]))


def test_what_the_runs_owner_named_is_dialled_whatever_it_is() -> None:
    policy = DialPolicy()
    addresses = ("/dns4/learner.home/tcp/443", "/ip4/127.0.0.1/tcp/80")
    policy.trust(A, addresses)

    assert [policy.begin(A, each, told_by="x", now_s=0) for each in addresses * 50] == [""] * 100
    assert policy.begin(B, addresses[0], told_by="x", now_s=0) != ""
    assert policy.begin(None, addresses[0], told_by="x", now_s=0) != ""


def at(number: int, port: int = 5000) -> str:
    return f"/ip4/8.8.{number // 256}.{number % 256}/tcp/{port}"


def num_dialled(
    policy: DialPolicy, dials: Sequence[tuple[PeerId, str, str]], *, over_s: float
) -> int:
    """Return how many of these dials, evenly spread over some time, go out."""
    step_s = over_s / len(dials)
    return sum(
        not policy.begin(peer, address, told_by=told_by, now_s=i * step_s)
        for i, (peer, address, told_by) in enumerate(dials)
    )


def test_many_identities_that_name_one_victim_have_it_dialled_a_few_times() -> None:
    dials = [(PeerId(f"P{i % 60}"), at(1), f"P{i % 60}") for i in range(3000)]

    assert num_dialled(DialPolicy([PUBLIC]), dials, over_s=60) <= 5


def test_whichever_ports_of_a_victim_are_named_it_gets_a_bounded_number_of_dials() -> None:
    dials = [(PeerId(f"P{i}"), at(1, 2000 + i), f"P{i}") for i in range(3000)]

    assert num_dialled(DialPolicy([PUBLIC]), dials, over_s=60) <= 12 + 6


def test_one_peer_has_only_so_many_addresses_dialled() -> None:
    dials = [(A, at(i), "A") for i in range(3000)]

    assert num_dialled(DialPolicy([PUBLIC]), dials, over_s=60) <= 12 + 6


def test_all_of_them_together_are_bounded_too() -> None:
    dials = [(PeerId(f"P{i}"), at(i), f"P{i}") for i in range(3000)]

    assert num_dialled(DialPolicy([PUBLIC]), dials, over_s=60) <= 64 + 60


def test_who_is_there_costs_nothing_however_many_there_are() -> None:
    policy = DialPolicy(["/ip4/127.0.0.1/tcp/4150"])
    for i in range(500):
        peer, address = PeerId(f"P{i}"), f"/ip4/127.0.0.1/tcp/{2000 + i}"
        assert policy.begin(peer, address, told_by="A", now_s=0.0) == ""
        policy.reached(peer, address)

    for _ in range(100):  # and is dialled again as often as there is cause
        assert policy.begin(PeerId("P7"), "/ip4/127.0.0.1/tcp/2007", told_by="A", now_s=0.0) == ""


def test_what_failed_is_tried_again_ever_less_often() -> None:
    policy = DialPolicy([PUBLIC])
    went_out = [s for s in range(1200) if not policy.begin(A, at(1), told_by="A", now_s=float(s))]
    waits = [after - before for before, after in itertools.pairwise(went_out)]

    assert waits[:5] == [5, 10, 20, 40, 80]
    assert set(waits[5:]) == {120}


def test_a_peer_that_moved_away_loses_what_it_had_proven() -> None:
    policy = DialPolicy([PUBLIC])
    policy.begin(A, at(1), told_by="A", now_s=0.0)
    policy.reached(A, at(1))
    policy.failed(A, at(1))

    assert policy.begin(A, at(1), told_by="A", now_s=1.0) == ""  # it counts again
    assert policy.begin(A, at(1), told_by="A", now_s=2.0) != ""


def test_naming_a_members_address_as_ones_own_does_not_keep_others_from_that_member() -> None:
    policy = DialPolicy([PUBLIC])
    policy.begin(A, at(1), told_by="A", now_s=0.0)
    policy.failed(A, at(1), is_taken=True)

    assert policy.begin(B, at(1), told_by="B", now_s=1.0) == ""
    assert policy.begin(A, at(1), told_by="A", now_s=1.0) != ""


@given(
    dials=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.floats(0, 30)),
        max_size=200,
    )
)
def test_whatever_is_named_no_limit_is_exceeded(
    dials: list[tuple[int, int, int, float]],
) -> None:
    policy, now_s = DialPolicy([PUBLIC]), 0.0
    by_host: dict[int, int] = {}
    for peer, host, port, wait_s in dials:
        now_s += wait_s
        address = at(host, 2000 + port)
        if not policy.begin(PeerId(f"P{peer}"), address, told_by=f"P{peer}", now_s=now_s):
            by_host[host] = by_host.get(host, 0) + 1

    assert all(num <= 12 + now_s * 0.1 + 1e-6 for num in by_host.values())
    assert sum(by_host.values()) <= 64 + now_s + 1e-6
