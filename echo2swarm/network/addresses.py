"""Multiaddresses as text: which peer, and where.

On the wire and in tickets an address ends in ``/p2p/PEER``; inside, a peer and
the places where it may answer are kept apart (:class:`~echo2swarm.network.base.PeerInfo`).
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

from echo2swarm.network.base import PeerInfo
from protocols.errors import MalformedMessageError
from protocols.ids import PeerId, public_key_of
from protocols.ticket import MAX_ADDRESSES

_SEPARATOR: Final = "/p2p/"
_PORT: Final = re.compile(r"/tcp/([0-9]+)")
_ANY_PORT: Final = re.compile(r"/tcp/0\b")


def split_address(address: str) -> tuple[PeerId, str]:
    """Return the peer that ``address`` names, and the address without it.

    Raises:
        MalformedMessageError: there is no ``/p2p/PEER`` at the end, or nothing before it.
    """
    where, separator, name = address.rpartition(_SEPARATOR)
    if not separator or not where.startswith("/"):
        raise MalformedMessageError(
            f"{address[:120]!r} is not an address of the form /ip4/HOST/tcp/PORT/p2p/PEER"
        )
    peer = PeerId(name)
    public_key_of(peer)
    return peer, where


def join_address(peer: PeerId, where: str) -> str:
    """Return the address of ``peer`` at ``where``, as tickets and adverts carry it."""
    return f"{where}{_SEPARATOR}{peer}"


def group_by_peer(addresses: Iterable[str]) -> tuple[PeerInfo, ...]:
    """Return one :class:`PeerInfo` per peer, in order of first mention; skips what is malformed."""
    found: dict[PeerId, list[str]] = {}
    for address in addresses:
        try:
            peer, where = split_address(address)
        except MalformedMessageError:
            continue
        places = found.setdefault(peer, [])
        if where not in places and len(places) < MAX_ADDRESSES:
            places.append(where)
    return tuple(PeerInfo(peer=p, addresses=tuple(places)) for p, places in found.items())


def merge_addresses(first: Iterable[str], *more: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of all arguments once each, the first mentioned first, bounded."""
    merged = dict.fromkeys(first)
    for addresses in more:
        merged.update(dict.fromkeys(addresses))
    return tuple(merged)[:MAX_ADDRESSES]


def host_in(where: str) -> str:
    """Return what one machine has for itself of ``where``: an IPv4 address, or the /64 of IPv6.

    Empty if there is no such address in it.
    """
    parts = where.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return ""
    try:
        address = ipaddress.ip_address(parts[2])
    except ValueError:
        return ""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def with_ports(listen: Sequence[str], addresses: Iterable[str]) -> tuple[str, ...]:
    """Return where to listen so that ``addresses``, where ``listen`` led to, are good again.

    The port that the system chose stands in place of 0. Where it chose several, or where none is
    told, 0 stays.
    """
    chosen = {match[1] for address in addresses if (match := _PORT.search(address))}
    if len(listen) != 1 or len(chosen) != 1:
        return tuple(listen)
    return (_ANY_PORT.sub(f"/tcp/{chosen.pop()}", listen[0]),)
