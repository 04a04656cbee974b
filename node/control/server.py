"""The node's end of its control socket: one request, one reply, as often as the owner likes.

Nothing that a client does, or fails to do, holds the node up: every wait has a deadline, every
frame a limit, and there are only a few connections at once.
"""

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import trio

from echo2swarm.system.errors import UsageError
from node.control.frames import read_frame, write_frame
from node.control.messages import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    CommandRefused,
    Reply,
    Request,
)
from node.control.paths import address_of, make_private_folder, socket_path
from protocols.codec import decode, encode
from protocols.errors import RemoteProtocolError

MAX_CLIENTS: Final = 8
IDLE_S: Final = 60.0
"""A client that asks for nothing this long is gone."""
SEND_S: Final = 5.0
_SOCKET_MODE: Final = 0o600

log = structlog.get_logger()

Answer = Callable[[Request], Reply]
"""Answers at once; a ``UsageError`` is told to the client."""


async def serve_control(
    state_dir: Path,
    answer: Answer,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the owner until cancelled; the socket is gone afterwards.

    Only one process may run in ``state_dir``: a socket that is there already is dead.

    Raises:
        StoreError: the socket's folder can't be used.
    """
    folder = make_private_folder(state_dir)
    path = socket_path(state_dir)
    path.unlink(missing_ok=True)
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listening:
        with address_of(path) as address:
            await listening.bind(address)
        path.chmod(_SOCKET_MODE)
        listening.listen(MAX_CLIENTS)
        log.debug("control.open", socket=str(path), folder=str(folder))
        limiter = trio.CapacityLimiter(MAX_CLIENTS)
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    client, _ = await listening.accept()
                    if limiter.available_tokens < 1:
                        client.close()
                        continue
                    token = object()
                    limiter.acquire_on_behalf_of_nowait(token)
                    nursery.start_soon(_serve, trio.SocketStream(client), answer, limiter, token)
        finally:
            path.unlink(missing_ok=True)


async def _serve(
    stream: trio.SocketStream, answer: Answer, limiter: trio.CapacityLimiter, token: object
) -> None:
    try:
        async with stream:
            if not _is_own(stream):
                return
            while True:
                with trio.fail_after(IDLE_S):
                    data = await read_frame(stream, max_bytes=MAX_REQUEST_BYTES)
                if data is None:
                    return
                reply = encode(_answer(data, answer), max_bytes=MAX_REPLY_BYTES)
                with trio.fail_after(SEND_S):
                    await write_frame(stream, reply)
    except (trio.BrokenResourceError, trio.TooSlowError, RemoteProtocolError) as exc:
        log.debug("control.dropped", error=str(exc))
    finally:
        limiter.release_on_behalf_of(token)


def _answer(data: bytes, answer: Answer) -> Reply:
    try:
        request: Request = decode(data, Request, max_bytes=MAX_REQUEST_BYTES)
    except RemoteProtocolError as exc:
        return CommandRefused(f"{exc}; is it of another version than the node?")
    try:
        return answer(request)
    except UsageError as exc:
        return CommandRefused(str(exc))


def _is_own(stream: trio.SocketStream) -> bool:
    """Whether the client is this user, or root; the folder's mode says so already."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", stream.getsockopt(socket.SOL_SOCKET, option, size))
    return uid in (os.geteuid(), 0)
