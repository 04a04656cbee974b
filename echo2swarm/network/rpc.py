"""One request frame, one reply frame, one stream: both sides of a call."""

from collections.abc import Awaitable, Callable

from echo2swarm.network.base import Network, ServeLimits, Stream, call
from protocols.ids import PeerId

__all__ = ["call", "serve_calls"]

Answer = Callable[[PeerId, bytes], Awaitable[bytes]]
"""Gets the caller and its request, returns the reply."""


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
