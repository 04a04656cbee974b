"""Frames on a local socket."""

import trio

from protocols.errors import MalformedMessageError
from protocols.framing import HEADER_BYTES, frame, frame_length


async def read_frame(stream: trio.SocketStream, *, max_bytes: int) -> bytes | None:
    """Return the next frame; None if the other end has closed, and nothing was cut off.

    Raises:
        MalformedMessageError: it is over its limit, or was cut off.
        BrokenResourceError: the connection broke.
    """
    header = await _read(stream, HEADER_BYTES)
    if not header:
        return None
    if len(header) < HEADER_BYTES:
        raise MalformedMessageError("a frame was cut off")
    length = frame_length(header, max_bytes=max_bytes)
    payload = await _read(stream, length)
    if len(payload) < length:
        raise MalformedMessageError("a frame was cut off")
    return payload


async def write_frame(stream: trio.SocketStream, payload: bytes) -> None:
    """Send one frame.

    Raises:
        BrokenResourceError: the connection broke.
    """
    await stream.send_all(frame(payload))


async def _read(stream: trio.SocketStream, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (more := await stream.receive_some(num_bytes - len(data))):
        data += more
    return data
