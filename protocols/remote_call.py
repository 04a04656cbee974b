"""A request and its reply, declared once: client and service both come from it."""

from dataclasses import dataclass
from types import UnionType
from typing import Any, Generic, TypeVar

from protocols.codec import Data, Message, decode, encode

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCall(Generic[RequestT, ReplyT]):
    """One kind of call: what travels, and the limits of it."""

    protocol_id: str
    request: type[Message] | UnionType
    """Its message; a union where there are several, all of them tagged."""
    reply: type[ReplyT]
    max_request_bytes: int
    max_reply_bytes: int
    timeout_s: float
    """How long the caller waits where it does not say otherwise."""

    def encode_request(self, request: RequestT) -> bytes:
        """Return what the caller sends.

        Raises:
            LocalProtocolError: it is over its limit.
        """
        return encode(request, max_bytes=self.max_request_bytes)

    def decode_request(self, data: Data) -> RequestT:
        """Return what the caller asks.

        Raises:
            MalformedMessageError: it is over its limit, or no such request.
        """
        kind: Any = self.request
        request: RequestT = decode(data, kind, max_bytes=self.max_request_bytes)
        return request

    def encode_reply(self, reply: ReplyT) -> bytes:
        """Return what is answered.

        Raises:
            LocalProtocolError: it is over its limit.
        """
        return encode(reply, max_bytes=self.max_reply_bytes)

    def decode_reply(self, data: Data) -> ReplyT:
        """Return what was answered.

        Raises:
            MalformedMessageError: it is over its limit, or no such reply.
        """
        return decode(data, self.reply, max_bytes=self.max_reply_bytes)
