"""Two peers behind routers meet through a third; specification: ``docs/specs/holepunch.md``.

Both have a connection to the *go-between*, who sees from where each of them comes.
The caller asks it for a peer; it invites that peer, and when the invitation is
accepted it tells both at once where to find each other. No byte of what they
have to say to each other passes through it.
"""

import ipaddress
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from protocols.codec import Message
from protocols.errors import MalformedMessageError

ASK_PROTOCOL_ID: Final = "/echo2/meet/1.0.0"
"""Served by go-betweens."""
INVITE_PROTOCOL_ID: Final = "/echo2/invite/1.0.0"
"""Served by everybody who knows a go-between."""
MAX_BYTES: Final = 1024
MAX_PLACES: Final = 4
MIN_PORT: Final = 1024
"""No router maps a connection to a lower port; a service of somebody else may be there."""

PeerName = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
Port = Annotated[int, msgspec.Meta(ge=MIN_PORT, le=65535)]
PlaceText = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class PunchFault(StrEnum):
    """Why a meeting does not come about."""

    NOT_HERE = "not_here"
    """The go-between has no connection to the other peer."""
    BUSY = "busy"
    """Too many meetings at once, or too many asked for."""
    UNABLE = "unable"
    """The other peer can't: it did not dial the go-between, or does not trust it."""
    CROSSED = "crossed"
    """Both asked for each other, and the other's request goes first."""


class PunchRequest(Message, frozen=True, tag="ask"):
    """Caller to go-between: bring me together with this peer."""

    peer_id: PeerName
    local_port: Port
    """From which it dialled the go-between."""


class PunchInvite(Message, frozen=True, tag="invite"):
    """Go-between to callee: this peer wants to meet you."""

    peer_id: PeerName


class PunchAccept(Message, frozen=True, tag="accept"):
    """Callee to go-between: I am ready."""

    local_port: Port
    """From which it dialled the go-between."""


class PunchGo(Message, frozen=True, tag="go"):
    """Go-between to both: connect now. Who asked counts as the dialler."""

    places: Annotated[tuple[PlaceText, ...], msgspec.Meta(min_length=1, max_length=MAX_PLACES)]
    """Where to find the other, as multiaddresses; the likeliest first."""


class PunchDeclined(Message, frozen=True, tag="declined"):
    """Go-between to caller, or callee to go-between: not now."""

    fault: PunchFault
    """Why."""


AskReply = PunchGo | PunchDeclined
InviteReply = PunchAccept | PunchDeclined


class TcpEndpoint(NamedTuple):
    """One end of a TCP connection."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as the multiaddress that travels."""
        return f"/{'ip6' if ':' in self.host else 'ip4'}/{self.host}/tcp/{self.port}"


def places_of(seen: TcpEndpoint, local_port: int) -> tuple[TcpEndpoint, ...]:
    """Return where a peer may be met of which the go-between sees ``seen``.

    A router that gives each connection a port of its own may still keep the local one
    where that is free. The host is never the peer's word: nobody can have others
    connect to a machine that is not its own.
    """
    kept = TcpEndpoint(seen.host, local_port)
    return tuple(place for place in dict.fromkeys((seen, kept)) if place.port >= MIN_PORT)


def parse_place(text: str) -> TcpEndpoint:
    """Parse a place that a go-between told.

    Raises:
        MalformedMessageError: it is none, or none to which anybody should connect.
    """
    match text.split("/"):
        case ["", ("ip4" | "ip6") as family, host, "tcp", port] if (
            port.isascii() and port.isdecimal() and MIN_PORT <= int(port) <= 65535
        ):
            try:
                address = ipaddress.ip_address(host)
            except ValueError:
                pass
            else:
                is_usable = not (address.is_multicast or address.is_unspecified)
                if address.version == int(family[2:]) and is_usable:
                    return TcpEndpoint(str(address), int(port))
        case _:
            pass
    raise MalformedMessageError(f"{text[:64]!r} is no place to meet")
