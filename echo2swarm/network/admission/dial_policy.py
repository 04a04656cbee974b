"""To which of the addresses that peers name we connect, without I/O.

Whoever can have others connect to an address of its choice has weapons that are not its
own: a scanner inside other people's networks, and a crowd to send against a third party.
So every dial to an address that a peer named is asked for here first. Where the run's owner
sent us (the addresses in the ticket), we go in any case.

Two questions, in this order. Is it an address that a stranger may name at all
(:func:`objection`)? And were there not too many dials of this kind lately
(:mod:`~echo2swarm.network.admission.dial_budget`)? An address at which a peer has proven its key
is its own, and needs no budget.
"""

import ipaddress
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from echo2swarm.network.admission.dial_budget import DialBudget
from protocols.ids import PeerId

MIN_PORT: Final = 1024
"""Below are the services of other people's machines: mail, web, remote log-in."""
MAX_PROVEN: Final = 4096
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Kind(Enum):
    """What kind of network an address is in."""

    GLOBAL = "global"
    PRIVATE = "private"
    SHARED = "shared (carrier-grade NAT)"
    LOOPBACK = "loopback"
    LINK_LOCAL = "link-local"
    RESERVED = "reserved"
    NOWHERE = "multicast or unspecified"
    """No single machine is there: never dialled."""


_KINDS: Final = tuple(
    (ipaddress.ip_network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", Kind.NOWHERE),
        ("255.255.255.255/32", Kind.NOWHERE),
        ("::/128", Kind.NOWHERE),
        ("127.0.0.0/8", Kind.LOOPBACK),
        ("::1/128", Kind.LOOPBACK),
        ("169.254.0.0/16", Kind.LINK_LOCAL),
        ("fe80::/10", Kind.LINK_LOCAL),
        ("10.0.0.0/8", Kind.PRIVATE),
        ("172.16.0.0/12", Kind.PRIVATE),
        ("192.168.0.0/16", Kind.PRIVATE),
        ("fc00::/7", Kind.PRIVATE),
        ("100.64.0.0/10", Kind.SHARED),
    )
)


class Target(NamedTuple):
    """Where a TCP connection can go."""

    host: str
    """An IP address in its shortest form."""
    port: int


def kind_of(address: IpAddress) -> Kind:
    """Return the kind of network in which ``address`` is.

    An IPv6 address that only wraps one of IPv4 is of that one's kind: packets to it end there.
    """
    if isinstance(address, ipaddress.IPv6Address) and (inner := _wrapped(address)) is not None:
        return kind_of(inner)
    if address.is_multicast:
        return Kind.NOWHERE
    for network, kind in _KINDS:
        if address in network:
            return kind
    return Kind.GLOBAL if address.is_global and not address.is_reserved else Kind.RESERVED


def _wrapped(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def target_of(address: str) -> Target | None:
    """Return where a multiaddress leads, if that is a TCP port of an IP address.

    A ``/p2p/PEER`` at its end does not matter. None for names and for other forms.
    """
    match address.partition("/p2p/")[0].split("/"):
        case ["", ("ip4" | "ip6") as family, host, "tcp", port] if (
            port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
        ):
            try:
                ip = ipaddress.ip_address(host)
            except ValueError:
                return None
            return Target(str(ip), int(port)) if ip.version == int(family[2:]) else None
        case _:
            return None


def reach_of(addresses: Iterable[str]) -> frozenset[tuple[int, Kind]]:
    """Return the kinds of network (with the IP version) in which a run is that is at ``addresses``.

    Where one of them is global, whoever takes part can be reached like that; the others of that
    version (of a virtual network on the learner's machine, say) open nothing.
    """
    found: set[tuple[int, Kind]] = set()
    for target in filter(None, map(target_of, addresses)):
        ip = ipaddress.ip_address(target.host)
        found.add((ip.version, kind_of(ip)))
    public = {version for version, kind in found if kind is Kind.GLOBAL}
    local = {(v, kind) for v, kind in found if v not in public and kind is not Kind.NOWHERE}
    return frozenset(local | {(4, Kind.GLOBAL), (6, Kind.GLOBAL)})


def objection(address: str, reach: frozenset[tuple[int, Kind]]) -> str:
    """Return why an address that a peer named is not dialled; empty if it may be.

    Args:
        address: a multiaddress.
        reach: where the run is, as :func:`reach_of` tells.
    """
    target = target_of(address)
    if target is None:
        return "only IP addresses with a TCP port are taken from peers"
    if target.port < MIN_PORT:
        return f"no port below {MIN_PORT} is taken from peers"
    ip = ipaddress.ip_address(target.host)
    kind = kind_of(ip)
    # A wrapped address is reached as its version, but leads into a network of the other.
    is_wrapped = isinstance(ip, ipaddress.IPv6Address) and _wrapped(ip) is not None
    if (4 if is_wrapped else ip.version, kind) in reach:
        return ""
    return f"a {kind.value} address, and the run is not in such a network"


class DialPolicy:
    """Decides on every dial of one participant.

    Args:
        run_at: the run's addresses: those in the ticket or, of the learner itself, its own.
            They say in which kinds of network the run is.
        trusted: addresses with ``/p2p/PEER`` at their end that are dialled whatever the rules.
    """

    def __init__(self, run_at: Iterable[str] = (), trusted: Iterable[str] = ()) -> None:
        self._run_at = set(run_at)
        self._reach = reach_of(self._run_at)
        self._trusted: set[tuple[PeerId, str]] = set()
        self._proven: dict[tuple[PeerId, Target], None] = {}
        self._budget = DialBudget()
        for address in trusted:
            where, _, peer = address.rpartition("/p2p/")
            self.trust(PeerId(peer), (where,))

    @property
    def is_on_loopback(self) -> bool:
        """Whether the run is on this machine, so that peers may be dialled here."""
        return any(kind is Kind.LOOPBACK for _, kind in self._reach)

    def trust(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Take these addresses of ``peer`` as named by the run's owner, not by a peer."""
        for address in addresses:
            self._trusted.add((peer, address))
            self._run_at.add(address)
        self._reach = reach_of(self._run_at)

    def found_at(self, target: Target) -> None:
        """Note that a name which the run's owner gave led to ``target``: the run is there, too."""
        self._run_at.add(f"/ip{6 if ':' in target.host else 4}/{target.host}/tcp/{target.port}")
        self._reach = reach_of(self._run_at)

    def is_good(self, peer: PeerId, address: str) -> bool:
        """Return whether ``peer`` has proven its key there, or the run's owner named it."""
        target = target_of(address)
        return self.is_trusted(peer, address) or (
            target is not None and self.is_proven(peer, target)
        )

    def is_trusted(self, peer: PeerId | None, address: str) -> bool:
        """Return whether the run's owner named this address of ``peer``."""
        return (peer, address) in self._trusted

    def objection(self, address: str) -> str:
        """Return why an address that a peer named is never dialled; empty if it may be."""
        return objection(address, self._reach)

    def is_proven(self, peer: PeerId, target: Target) -> bool:
        """Return whether ``peer`` has shown there that it holds its key."""
        return (peer, target) in self._proven

    def begin(self, peer: PeerId | None, address: str, *, told_by: str, now_s: float) -> str:
        """Count a dial that is about to be made; returns why it must not be, empty if it may.

        Until :meth:`reached` is called, it counts as one that failed.

        Args:
            peer: whom to expect there; None if nobody knows.
            address: a multiaddress.
            told_by: who named it.
            now_s: the time.
        """
        if self.is_trusted(peer, address):
            return ""
        if why := self.objection(address):
            return why
        target = target_of(address)
        assert target is not None  # noqa: S101 - there would be an objection
        if peer is not None and self.is_proven(peer, target):
            return ""
        return self._budget.begin(peer, target, told_by=told_by, now_s=now_s)

    def reached(self, peer: PeerId, address: str) -> None:
        """Note that ``peer`` has proven its key at ``address``."""
        target = target_of(address)
        if target is None:
            return  # A name: it was trusted.
        self._proven.pop((peer, target), None)
        self._proven[peer, target] = None
        if len(self._proven) > MAX_PROVEN:
            del self._proven[next(iter(self._proven))]
        self._budget.reached(peer, target)

    def failed(self, peer: PeerId | None, address: str, *, is_taken: bool = False) -> None:
        """Note that ``peer`` was not found at ``address``.

        Args:
            peer: who was expected there.
            address: where.
            is_taken: another member of the network answered: the address is good for that one.
        """
        target = target_of(address)
        if target is None or peer is None:
            return
        self._proven.pop((peer, target), None)
        if is_taken:
            self._budget.is_taken(target)
