"""Who broke the rules, us or the peer, and which rule."""

from protocols.reasons import Reason


class ProtocolError(Exception):
    """A rule of one of our wire protocols was broken."""


class LocalProtocolError(ProtocolError):
    """Our own code asked for something the protocol forbids: a bug here."""


class RemoteProtocolError(ProtocolError):
    """A peer did something the protocol forbids.

    Attributes:
        reason: the machine-readable code that the peer is told and metrics count.
    """

    def __init__(self, message: str, *, reason: Reason = Reason.MALFORMED) -> None:
        super().__init__(message)
        self.reason = reason


class MalformedMessageError(RemoteProtocolError):
    """Bytes from a peer do not decode to a message of this protocol."""


class BadSignatureError(RemoteProtocolError):
    """A signed message does not verify under the key it must be signed with."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.BAD_SIGNATURE)
