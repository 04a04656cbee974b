"""The owner's end of a node's control socket."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from echo2swarm.system.errors import SwarmError, UsageError
from node.control.frames import read_frame, write_frame
from node.control.messages import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    CommandRefused,
    GetStatus,
    NodeSnapshot,
    Reply,
    Request,
)
from node.control.paths import address_of, socket_path
from node.control.server import MAX_CLIENTS
from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError, RemoteProtocolError

ANSWER_S: Final = 5.0
_RETRY_S: Final = 0.1


class NoNodeError(SwarmError):
    """No node runs in that state directory, or none that we may ask."""


class SilentNodeError(SwarmError):
    """A node runs there, and does not answer."""


class OtherVersionError(SwarmError):
    """A node runs there, of a version that this command can't talk to."""


class ControlClient:
    """A connection to one node; made by :func:`open_control`."""

    def __init__(self, stream: trio.SocketStream, state_dir: Path) -> None:
        self._stream = stream
        self._state_dir = state_dir

    async def ask(self, request: Request) -> Reply:
        """Return the node's answer.

        Raises:
            NoNodeError: it ended meanwhile.
            SilentNodeError: it does not answer.
            SwarmError: it refused, and the message says why.
        """
        try:
            with trio.fail_after(ANSWER_S):
                await write_frame(self._stream, encode(request, max_bytes=MAX_REQUEST_BYTES))
                data = await read_frame(self._stream, max_bytes=MAX_REPLY_BYTES)
        except trio.TooSlowError:
            later = "" if isinstance(request, GetStatus) else "; it may still do it, once it can"
            raise SilentNodeError(f"{_silent(self._state_dir)}{later}") from None
        except (trio.BrokenResourceError, MalformedMessageError):
            data = None
        if data is None:
            await _connect_again(self._state_dir)
            raise SilentNodeError(
                f"the node in {self._state_dir} closed the connection: at most {MAX_CLIENTS} "
                "commands at once; try again"
            )
        try:
            reply: Reply = decode(data, Reply, max_bytes=MAX_REPLY_BYTES)
        except RemoteProtocolError as exc:
            raise OtherVersionError(
                f"the node in {self._state_dir} is of another version than this command; restart "
                "it, or use the echo2-node that it was started with"
            ) from exc
        if isinstance(reply, CommandRefused):
            raise UsageError(reply.why)
        return reply

    async def status(self) -> NodeSnapshot:
        """Return what the node is doing.

        Raises:
            SwarmError: see :meth:`ask`.
        """
        reply = await self.ask(GetStatus())
        if not isinstance(reply, NodeSnapshot):
            raise SwarmError(f"the node in {self._state_dir} answered something else")
        return reply


@asynccontextmanager
async def open_control(state_dir: Path) -> AsyncIterator[ControlClient]:
    """Connect to the node in ``state_dir``.

    Raises:
        NoNodeError: none runs there; a socket that one left behind when it was killed is none.
        SilentNodeError: one runs there, and takes no more connections.
    """
    path = socket_path(state_dir)
    connection = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with trio.fail_after(ANSWER_S), address_of(path) as address:
            await _connect(connection, address)
    except trio.TooSlowError:
        connection.close()
        raise SilentNodeError(_silent(state_dir)) from None
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        connection.close()
        raise NoNodeError(f"no node runs in {state_dir}") from None
    except PermissionError:
        connection.close()
        raise NoNodeError(f"{path} belongs to another user; only they can ask that node") from None
    except BaseException:
        connection.close()
        raise
    async with trio.SocketStream(connection) as stream:
        yield ControlClient(stream, state_dir)


async def _connect(connection: trio.socket.SocketType, address: str) -> None:
    """Connect, however many wait before us.

    A node that is held up accepts nobody, and its queue fills. The system then says "try again"
    for local sockets, which trio takes for "in progress", and so for a success.
    """
    while True:
        await connection.connect(address)
        try:
            connection.getpeername()
        except OSError as exc:
            if exc.errno != errno.ENOTCONN:
                raise
            await trio.sleep(_RETRY_S)
        else:
            return


async def _connect_again(state_dir: Path) -> None:
    """Return if a node still runs in ``state_dir``.

    Raises:
        NoNodeError: it has ended.
        SilentNodeError: it takes no more connections.
    """
    try:
        async with open_control(state_dir):
            pass
    except NoNodeError:
        raise NoNodeError(f"the node in {state_dir} has ended") from None


def _silent(state_dir: Path) -> str:
    return (
        f"the node in {state_dir} does not answer within {ANSWER_S:g} s; its log may say why, and "
        "it may be stopped (Ctrl-Z) or the machine overloaded"
    )
