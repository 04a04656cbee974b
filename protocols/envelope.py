"""Signed bytes: verify, then decode.

The signature covers the *encoded* message, with a context in front, so that a
signature on one kind of message can never be replayed as one on another.
Relays pass the bytes on as they came; nobody re-encodes before verifying, so
the encoding need not be canonical.
"""

from typing import Annotated, Final, Self, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocols.codec import Message, decode, encode
from protocols.errors import BadSignatureError

SIGNATURE_BYTES: Final = 64
OVERHEAD_BYTES: Final = 128
"""More than an envelope adds to its payload: signature, field names, lengths."""

T = TypeVar("T")


class Envelope(Message, frozen=True):
    """The exact bytes that were signed, and the signature."""

    payload: bytes
    signature: Annotated[
        bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)
    ]

    @classmethod
    def sign(cls, message: msgspec.Struct, key: Ed25519PrivateKey, *, context: bytes) -> Self:
        """Encode ``message`` and sign it under ``context``."""
        payload = msgspec.msgpack.encode(message)
        return cls(payload, key.sign(context + payload))

    def open(self, kind: type[T], key: Ed25519PublicKey, *, context: bytes) -> T:
        """Verify, then decode.

        Raises:
            BadSignatureError: ``key`` did not sign these bytes under ``context``.
            MalformedMessageError: it did, but they are not a ``kind``.
        """
        try:
            key.verify(self.signature, context + self.payload)
        except InvalidSignature:
            raise BadSignatureError(f"{kind.__name__} has a bad signature") from None
        return decode(self.payload, kind, max_bytes=len(self.payload))


def seal_message(
    message: msgspec.Struct, key: Ed25519PrivateKey, *, context: bytes, max_bytes: int
) -> bytes:
    """Return ``message`` signed and encoded, ready to travel.

    Raises:
        LocalProtocolError: it is longer than the protocol allows; nobody would read it.
    """
    return encode(Envelope.sign(message, key, context=context), max_bytes=max_bytes)


def unseal(
    data: bytes, kind: type[T], key: Ed25519PublicKey, *, context: bytes, max_bytes: int
) -> T:
    """Parse, verify and decode what :func:`seal_message` made.

    Raises:
        MalformedMessageError: too long, or not an envelope around a ``kind``.
        BadSignatureError: not signed by ``key`` under ``context``.
    """
    return decode(data, Envelope, max_bytes=max_bytes).open(kind, key, context=context)
