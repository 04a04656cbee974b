"""Ticket: the one line a contributor types; specification: ``docs/specs/ticket.md``.

``echo2-1:`` and base64url of: total length (2 bytes), sealed :class:`Ticket`.
The length tells a ticket that was cut short in copying from a forged one.
"""

import base64
import binascii
import struct
from typing import Annotated, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocols.codec import Message, decode
from protocols.envelope import Envelope, seal_message
from protocols.errors import BadSignatureError, MalformedMessageError, RemoteProtocolError
from protocols.ids import PeerId, RunId, peer_id_of
from protocols.reasons import Reason

PREFIX: Final = "echo2-1:"
MAX_BYTES: Final = 4096
MAX_ADDRESSES: Final = 16
SIGNING_CONTEXT: Final = b"echo2/ticket/1\0"
_DAMAGED: Final = "the ticket is damaged; copy it again, whole"
_LENGTH = struct.Struct("!H")

Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Address = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
# Folders are named after runs, so a run is never "..", and has no line break at its end.
RunName = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*\Z"),
]


class Ticket(Message, frozen=True):
    """Admission to one run, signed by its learner."""

    run_id: RunName
    learner_key: Key
    """Ed25519 public key; manifests must be signed with it, and the learner's peer id is its."""
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1, max_length=MAX_ADDRESSES)]
    """Multiaddresses with ``/p2p/PEER`` at the end: of the learner, or of any node of the run."""
    expires_unix_s: Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799)]
    """Until when it admits; at most the year 9999, so that every clock can show it."""

    @property
    def learner_public_key(self) -> Ed25519PublicKey:
        """The learner's key, ready to verify with."""
        return Ed25519PublicKey.from_public_bytes(self.learner_key)

    @property
    def learner_peer(self) -> PeerId:
        """The learner's peer id."""
        return peer_id_of(self.learner_public_key)

    @property
    def run(self) -> RunId:
        """The run this ticket admits to."""
        return RunId(self.run_id)


def format_ticket(ticket: Ticket, key: Ed25519PrivateKey) -> str:
    """Return ``ticket`` as one line, signed with the learner's ``key``.

    Raises:
        LocalProtocolError: it is over ``MAX_BYTES``: too many or too long addresses.
    """
    sealed = seal_message(ticket, key, context=SIGNING_CONTEXT, max_bytes=MAX_BYTES)
    data = _LENGTH.pack(len(sealed)) + sealed
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def parse_ticket(line: str, *, now_unix_s: float) -> Ticket:
    """Parse, verify and date-check a ticket.

    Raises:
        RemoteProtocolError: with a message for the person who pasted it.
    """
    text = line.strip()
    if not text.startswith(PREFIX):
        raise MalformedMessageError(f"a ticket starts with {PREFIX!r}; this one does not")
    body = text[len(PREFIX) :]
    if len(body) > MAX_BYTES * 2:
        raise MalformedMessageError("ticket is far too long", reason=Reason.TOO_LARGE)
    # A character count of 4n + 1 is never base64: the last character says nothing.
    body = body[: len(body) - (len(body) % 4 == 1)]
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise MalformedMessageError(
            "ticket contains characters that no ticket has; copy only its line"
        ) from None
    if len(data) < _LENGTH.size:
        raise MalformedMessageError("ticket is cut short: copy the whole line")
    (length,) = _LENGTH.unpack(data[: _LENGTH.size])
    sealed = data[_LENGTH.size :]
    if len(sealed) < length:
        raise MalformedMessageError(
            f"ticket is cut short: {len(sealed)} of {length} bytes; copy the whole line"
        )
    if len(sealed) > length:
        raise MalformedMessageError(
            f"ticket has {len(sealed) - length} bytes too many; copy only its line"
        )
    try:
        envelope = decode(sealed, Envelope, max_bytes=MAX_BYTES)
        # The key is inside what it signs: this proves the ticket whole and unaltered,
        # and that its maker holds the learner's key; whom to trust is for the reader to know.
        claimed = decode(envelope.payload, Ticket, max_bytes=MAX_BYTES)
        ticket = envelope.open(Ticket, claimed.learner_public_key, context=SIGNING_CONTEXT)
    except BadSignatureError:
        raise BadSignatureError(f"{_DAMAGED}; its signature does not fit") from None
    except MalformedMessageError as exc:
        raise MalformedMessageError(_DAMAGED, reason=exc.reason) from exc
    if ticket.expires_unix_s <= now_unix_s:
        ago_h = (now_unix_s - ticket.expires_unix_s) / 3600
        raise RemoteProtocolError(
            f"ticket for run {ticket.run_id!r} expired {ago_h:.1f} h ago (or this machine's clock "
            "is ahead); ask the run owner for a new one",
            reason=Reason.EXPIRED,
        )
    return ticket
