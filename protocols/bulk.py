"""Agreeing on a bulk connection; specification: ``docs/specs/bulk.md``.

Bulk data leaves the libp2p connection: it goes over TLS 1.3 on a TCP connection
of its own. Who it is at either end is settled here, on a libp2p stream, whose ends
have proven their keys: the side that accepts the connection names its
certificate, and gives the side that dials a secret to show. Whoever can dial the
other does; which of them asked for the stream makes no difference to that.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from protocols.codec import Message
from protocols.manifest import Digest
from protocols.ticket import MAX_ADDRESSES, Address

PROTOCOL_ID: Final = "/echo2/bulk/1.0.0"
ALPN: Final = "echo2-bulk/1"
FIRST_BYTE: Final = 0x16
"""Starts every TLS connection, and no libp2p one: both come to the same port."""
MAX_MESSAGE_BYTES: Final = 8 * 1024
TOKEN_BYTES: Final = 32
TOKEN_LIFE_S: Final = 10.0
"""A token not shown within this is worthless."""

Token = Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
ProtocolName = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class DialTarget(Message, frozen=True):
    """How to make one connection to who says this."""

    certificate_sha256: Digest
    """Of the DER form of the certificate it will show."""
    token: Token
    """To be shown to it, once: the first bytes inside TLS."""
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)]
    """Where it may be dialled. Only the ports count: the host is the one that it is connected
    from."""


class DialRequest(Message, frozen=True, tag="ask"):
    """The opener of a stream means to dial: where to, and with which token?"""

    protocol: ProtocolName
    """What the stream is for."""


class CallBack(Message, frozen=True, tag="call_back"):
    """The opener of a stream can't dial: be so good and dial it."""

    protocol: ProtocolName
    """What the stream is for."""
    entrance: DialTarget
    """How."""


class DialInvitation(Message, frozen=True, tag="offer"):
    """Answer to :class:`DialRequest`."""

    entrance: DialTarget
    """How to dial."""


class Called(Message, frozen=True, tag="called"):
    """Answer to :class:`CallBack`, before anything is dialled: a connection will come, or none."""


class Obstacle(StrEnum):
    """Why there will be no bulk connection, so that libp2p has to carry the stream."""

    UNKNOWN_PROTOCOL = "unknown_protocol"
    """Nobody serves it here."""
    BUSY = "busy"
    """Too many bulk connections already."""
    UNREACHABLE = "unreachable"
    """There is no address to dial."""


class BulkRefused(Message, frozen=True, tag="refused"):
    """Answer to either."""

    why: Obstacle
    """What stands in the way."""


Request = DialRequest | CallBack
Reply = DialInvitation | Called | BulkRefused
