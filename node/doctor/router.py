"""What kind of router is between this machine and the others. Pure.

A router that keeps the port of a connection, where it is free, mostly keeps it whoever is called:
then others behind routers can be met (``docs/nat.md``). One that gives each connection a port
of its own can't be foreseen. One connection tells the two apart well, and not for certain: the
port may have been taken.
"""

from dataclasses import dataclass

from protocols.errors import RemoteProtocolError
from protocols.holepunch import parse_place


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """As one connection shows it."""

    host: str
    """Its address, as others see it."""
    keeps_ports: bool


def router_between(own_end: str, seen_at: str) -> Router | None:
    """Return the router that changes addresses in between; None if there is none, or none known.

    Args:
        own_end: of a connection, as this machine sees it: a multiaddress.
        seen_at: the same, as the other end sees it.
    """
    try:
        own, seen = parse_place(own_end), parse_place(seen_at)
    except RemoteProtocolError:
        return None
    if own.host == seen.host:
        return None
    return Router(host=seen.host, keeps_ports=own.port == seen.port)
