"""Both directions of a probe, as either end performs them; the I/O around ``protocols.probe``."""

import secrets
from collections.abc import Awaitable, Callable

import msgspec
import trio

from echo2swarm.network.base import Stream
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import NetworkError
from protocols.codec import decode, encode
from protocols.errors import RemoteProtocolError
from protocols.probe import (
    MAX_FRAME_BYTES,
    FromLearner,
    FromNode,
    ProbeBlock,
    ProbeReceiver,
    ProbeSeen,
    ProbeSender,
)

MayISend = Callable[[int], Awaitable[None]]
"""Returns when so many bytes may be sent."""


async def say(stream: Stream, message: msgspec.Struct) -> None:
    """Send one message."""
    await stream.send(encode(message, max_bytes=MAX_FRAME_BYTES))


async def hear(stream: Stream) -> FromNode | FromLearner:
    """Return the next message."""
    message: FromNode | FromLearner = decode(
        await stream.receive(), FromNode | FromLearner, max_bytes=MAX_FRAME_BYTES
    )
    return message


async def send_blocks(stream: Stream, *, may_i_send: MayISend | None = None) -> float | None:
    """Send one direction's blocks; returns the rate at which they were answered, if it shows.

    Raises:
        NetworkError: the stream broke.
        RemoteProtocolError: the other end does not keep to the protocol.
    """
    sender, changes = ProbeSender(trio.current_time()), ChangeEvent()

    failure: NetworkError | RemoteProtocolError | None = None

    async def send() -> None:
        nonlocal failure
        try:
            while not sender.is_done:
                change = changes.next_change
                size = sender.next_block_bytes(trio.current_time())
                if size is None:
                    await change.wait()
                    continue
                if may_i_send is not None:
                    await may_i_send(size)
                await say(stream, sender.block(secrets.token_bytes(size)))
        except NetworkError as exc:
            failure = exc
            nursery.cancel_scope.cancel()

    # The answers are read meanwhile: a late look would make the link seem faster than it is.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        try:
            while not sender.is_done:
                message = await hear(stream)
                if not isinstance(message, ProbeSeen):
                    raise RemoteProtocolError(f"{type(message).__name__} instead of ProbeSeen")
                sender.seen(message, trio.current_time())
                changes.notify()
        except (NetworkError, RemoteProtocolError) as exc:
            failure = exc
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return sender.meter.bytes_per_s()


async def receive_blocks(stream: Stream) -> float | None:
    """Receive and answer one direction's blocks; returns the rate at which they came.

    Raises:
        NetworkError: the stream broke.
        RemoteProtocolError: the other end does not keep to the protocol.
    """
    receiver = ProbeReceiver()
    while not receiver.is_done:
        message = await hear(stream)
        if not isinstance(message, ProbeBlock):
            raise RemoteProtocolError(f"{type(message).__name__} instead of ProbeBlock")
        await say(stream, receiver.received(message, trio.current_time()))
    return receiver.meter.bytes_per_s()
