"""One request frame, one reply frame, one stream: both sides of a call."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from echo2swarm.network.base import Network, ServeLimits, Stream, call
from protocols.codec import Message
from protocols.ids import PeerId
from protocols.remote_call import RemoteCall

__all__ = ["call", "call_remote", "serve_calls"]

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)

Answer = Callable[[PeerId, bytes], Awaitable[bytes]]
"""Gets the caller and its request, returns the reply."""


async def call_remote(
    network: Network,
    peer: PeerId,
    remote: RemoteCall[RequestT, ReplyT],
    request: RequestT,
    *,
    timeout_s: float | None = None,
) -> ReplyT:
    """Ask ``peer``, and return its reply, checked.

    Args:
        network: over which.
        peer: whom.
        remote: the kind of call, with its limits.
        request: what to ask.
        timeout_s: how long to wait; None for as long as is usual for the call.

    Raises:
        NetworkError: not reachable, broken, or silent for too long.
        RemoteProtocolError: the reply is over its limit, or is none.
        LocalProtocolError: the request is over its limit.
    """
    data = await call(
        network,
        peer,
        remote.protocol_id,
        remote.encode_request(request),
        max_reply_bytes=remote.max_reply_bytes,
        timeout_s=remote.timeout_s if timeout_s is None else timeout_s,
    )
    return remote.decode_reply(data)


def serve_calls(
    network: Network,
    protocol: str,
    fn: Answer,
    *,
    max_request_bytes: int,
    max_reply_bytes: int,
    timeout_s: float,
    max_streams_per_peer: int = 8,
    max_streams: int = 256,
    max_per_s: float = 100.0,
) -> None:
    """From now on, answer calls of ``protocol`` with ``fn``.

    A :class:`~protocols.errors.RemoteProtocolError` that ``fn`` raises resets the
    caller's stream after a warning in the log; any other exception does so too, as
    an error in the log. A refusal that the caller is to understand is a reply.

    Args:
        network: where to serve.
        protocol: its protocol id.
        fn: makes the reply.
        max_request_bytes: a longer request is not read.
        max_reply_bytes: a longer reply is a bug here, and is not sent.
        timeout_s: from the whole request to the sent reply.
        max_streams_per_peer: calls of one peer at once.
        max_streams: calls at once.
        max_per_s: calls of one peer, on average.
    """

    async def handle(stream: Stream) -> None:
        reply = await fn(stream.peer, await stream.receive())
        if len(reply) > max_reply_bytes:
            raise ValueError(f"{protocol}: reply of {len(reply)} bytes, limit {max_reply_bytes}")
        await stream.send(reply)

    network.serve(
        protocol,
        handle,
        ServeLimits(
            max_frame_bytes=max_request_bytes,
            max_streams=max_streams,
            max_streams_per_peer=max_streams_per_peer,
            timeout_s=timeout_s,
            max_per_s=max_per_s,
        ),
    )
