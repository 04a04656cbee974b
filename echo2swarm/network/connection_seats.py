"""Who may have a connection when there are more who want one than there may be.

No address has a fixed limit: many honest peers may share one, behind a router or on one machine.
Only when the seats run short is there a choice to make, and then whoever takes up most of them, by
network, by address and by identity, loses its oldest. Peers that the application vouches for are
not part of that, up to a share of all seats, so that newcomers never find all of them taken.
"""

import ipaddress
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from echo2swarm.network.base import IsProven
from echo2swarm.network.throttle import Throttle
from protocols.ids import PeerId

MAX_SEATS_PER_PEER: Final = 8
NUM_PROTECTED_PER_PEER: Final = 2
"""One connection for control, and one for bulk; what else a protected peer has is like others'."""
PROTECTED_SHARE: Final = 5 / 8
UNIDENTIFIED_SHARE: Final = 1 / 8
"""Of the seats, for handshakes of others that are not over; and as much again for our own."""
_MIN_UNIDENTIFIED: Final = 2
SHUT_OUT_S: Final = 10.0
"""For so long nobody connects from where a flood came: to flood again must not cost a handshake
twice a second. It is short, since others may share the address, and twice as long each time that
the next flood follows."""
MAX_SHUT_OUT_S: Final = 160.0
FORGIVEN_S: Final = 60.0
"""After so long without a flood, the next is the first again."""
OWN_BURST: Final = 32
OWN_PER_S: Final = 4.0
"""So often one host may take the place of its own: each time costs a whole handshake."""
_MAX_HOSTS: Final = 1024


class Why(StrEnum):
    """Why a connection has to go."""

    HANDSHAKES = "too many handshakes at once"
    FULL = "all connections are taken, and its network or its peer has the most of them"
    PEER = f"a peer may have {MAX_SEATS_PER_PEER} connections"


@dataclass(slots=True, eq=False)
class ConnectionSeat:
    """What one connection takes up, from its first byte to its last."""

    address: str
    """Where the other end is: an IP address."""
    is_dialled: bool
    """Whether we opened the connection."""
    peer: PeerId | None = None
    """Who is at the other end; None until it has proven that."""
    why_removed: Why | None = None
    # Found out once: where seats are short, each newcomer's choice looks at those of all others.
    host: str = field(init=False)
    """What one machine has for itself: an IPv4 address, or the /64 of an IPv6 one."""
    subnet: str = field(init=False)
    """What one owner has, more or less: a /24, or the /48 of an IPv6 address."""

    def __post_init__(self) -> None:
        self.host = _network_of(self.address, v4_bits=32, v6_bits=64)
        self.subnet = _network_of(self.address, v4_bits=24, v6_bits=48)


class _ShutOut(NamedTuple):
    until_s: float
    length_s: float


class ConnectionSeats:
    """The connections that there are.

    Args:
        num_seats: how many there may be.
        is_protected: names the peers that the application vouches for.
    """

    def __init__(self, num_seats: int, *, is_protected: IsProven) -> None:
        self.num_seats = num_seats
        self._max_protected = int(num_seats * PROTECTED_SHARE)
        self._max_unidentified = max(_MIN_UNIDENTIFIED, int(num_seats * UNIDENTIFIED_SHARE))
        self._seats: dict[ConnectionSeat, None] = {}
        self._is_protected = is_protected
        self._shut_out: dict[str, _ShutOut] = {}
        self._own: dict[str, Throttle] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def take(self, seat: ConnectionSeat) -> ConnectionSeat | None:
        """Add a connection; returns the one that has to go for it, which may be itself."""
        self._seats[seat] = None
        waiting = [s for s in self._seats if s.peer is None and s.is_dialled is seat.is_dialled]
        if seat.peer is None and len(waiting) > self._max_unidentified:
            return self._remove(waiting, Why.HANDSHAKES)
        if len(self._seats) <= self.num_seats:
            return None
        protected = self._protected_seats()
        known = [s for s in self._seats if s.peer is not None and s not in protected]
        return self._remove(known or [s for s in self._seats if s not in protected], Why.FULL)

    def identify(self, seat: ConnectionSeat, peer: PeerId) -> ConnectionSeat | None:
        """Note who is at the other end; returns the connection of that peer that has to go."""
        seat.peer = peer
        own = [s for s in self._seats if s.peer == peer]
        return self._remove(own[:1], Why.PEER) if len(own) > MAX_SEATS_PER_PEER else None

    def leave(self, seat: ConnectionSeat) -> None:
        """Forget a connection that ended; it may have been forgotten already."""
        self._seats.pop(seat, None)

    def flooded(self, seat: ConnectionSeat, now_s: float) -> None:
        """Shut out where a connection came from that had to be cut."""
        before = self._shut_out.pop(seat.host, None)
        if before is not None and now_s < before.until_s:
            # Of one flood, all connections are cut.
            self._shut_out[seat.host] = before
            return
        is_next = before is not None and now_s < before.until_s + FORGIVEN_S
        length_s = min(2 * before.length_s, MAX_SHUT_OUT_S) if before and is_next else SHUT_OUT_S
        self._shut_out[seat.host] = _ShutOut(now_s + length_s, length_s)
        if len(self._shut_out) > _MAX_HOSTS:
            del self._shut_out[next(iter(self._shut_out))]

    def may_try(self, seat: ConnectionSeat, now_s: float) -> bool:
        """Whether a connection that somebody opens is worth a handshake."""
        if seat.is_dialled:
            return True
        if self.is_shut_out(seat, now_s):
            return False
        if len(self._seats) < self.num_seats or not self._has_most(seat.host):
            return True
        bucket = self._own.pop(seat.host, None)
        bucket = bucket or Throttle(burst=OWN_BURST, refill_per_s=OWN_PER_S)
        self._own[seat.host] = bucket
        if len(self._own) > _MAX_HOSTS:
            del self._own[next(iter(self._own))]
        return bucket.admit(now_s) is not None

    def _has_most(self, host: str) -> bool:
        held = Counter(seat.host for seat in self._seats)
        return 1 < held[host] == max(held.values(), default=0)

    def is_shut_out(self, seat: ConnectionSeat, now_s: float) -> bool:
        """Whether a connection that somebody opens comes from where a flood came a moment ago."""
        found = self._shut_out.get(seat.host)
        return not seat.is_dialled and found is not None and now_s < found.until_s

    def _protected_seats(self) -> frozenset[ConnectionSeat]:
        found: list[ConnectionSeat] = []
        per_peer: Counter[PeerId] = Counter()
        for seat in self._seats:
            peer = seat.peer
            if peer is None or per_peer[peer] >= NUM_PROTECTED_PER_PEER:
                continue
            if self._is_protected(peer):
                per_peer[peer] += 1
                found.append(seat)
        return frozenset(found[: self._max_protected])

    def _remove(self, candidates: Iterable[ConnectionSeat], why: Why) -> ConnectionSeat:
        """Choose from ``candidates``, which are in the order in which they came."""
        chosen = list(candidates)
        subnets = Counter(seat.subnet for seat in chosen)
        hosts = Counter(seat.host for seat in chosen)
        peers = Counter(seat.peer for seat in chosen)
        victim = max(chosen, key=lambda s: (subnets[s.subnet], hosts[s.host], peers[s.peer]))
        del self._seats[victim]
        victim.why_removed = why
        return victim


def _network_of(address: str, *, v4_bits: int, v6_bits: int) -> str:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    bits = v4_bits if ip.version == 4 else v6_bits
    return str(ipaddress.ip_network((ip, bits), strict=False))
