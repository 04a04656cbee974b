"""A TCP connection between two machines that are both behind routers.

Neither router lets a stranger in, but each lets in the answers to what went out.
So both sides send to each other at the same time, each from the one port whose
place outside its router is known (a third party has seen a connection from it).
Each also listens on that port: if the first packet of one side came too early
and was refused, the one of the other side still finds somebody.

Knows nothing of who is at the other end: who uses a connection has to ask for proof.
"""

import errno
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from protocols.holepunch import TcpEndpoint

ATTEMPT_S: Final = 2.5
"""Long enough for the packet that is sent again after a second to make the round trip."""
MAX_UNCLAIMED: Final = 8
"""Connections that came in on one port, and wait for whoever tries to get them."""

CLAIM_S: Final = 1.0
"""So long a connection waits for who expects it, who may not have been told to yet. Then whoever
expects one from the same host gets it: its router may not use the port that was seen."""

_Sender = trio.MemorySendChannel[trio.SocketStream]


class Puncher:
    """Connects from ports that are in use already: those of connections to a go-between.

    Args:
        nursery: where its listeners run.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._ports: dict[TcpEndpoint, _Port] = {}

    @asynccontextmanager
    async def connections(
        self, local: TcpEndpoint, remote: Sequence[TcpEndpoint], *, retry_s: float
    ) -> AsyncIterator[trio.MemoryReceiveChannel[trio.SocketStream]]:
        """Try to connect for the time of the context; the channel yields what came about.

        Args:
            local: our end, that of an open connection whose port was shared (:func:`share_port`).
            remote: where the other side may be seen from outside.
            retry_s: after a refusal; different on the two sides, so that they don't keep
                missing each other.

        Raises:
            OSError: the local port can't be used for this.
        """
        port = self._ports.get(local)
        if port is None:
            # One for all: of several on a port, the system picks any for a connection.
            port = self._ports[local] = _Port(local)
            self._nursery.start_soon(port.serve)
        send, receive = trio.open_memory_channel[trio.SocketStream](0)
        port.expect(remote, send)
        try:
            async with trio.open_nursery() as nursery, receive:
                for place in remote:
                    nursery.start_soon(_dial, local, place, retry_s, send)
                yield receive
                nursery.cancel_scope.cancel()
        finally:
            del port.waiting[send]
            if not port.waiting:
                del self._ports[local]
                port.close()


def share_port(sock: trio.socket.SocketType | socket.socket) -> None:
    """Let other sockets of ours use the port that ``sock`` is about to be bound to."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if (option := getattr(socket, "SO_REUSEPORT", None)) is not None:
        sock.setsockopt(socket.SOL_SOCKET, option, 1)


def _socket_on(local: TcpEndpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in local.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        share_port(sock)
        sock.bind((local.host, local.port))
    except BaseException:
        sock.close()
        raise
    return sock


class _Port:
    """Listens on a shared port, and hands what comes in to who waits for it."""

    def __init__(self, local: TcpEndpoint) -> None:
        self.waiting: dict[_Sender, tuple[TcpEndpoint, ...]] = {}
        sock = _socket_on(local)
        try:
            sock.listen(MAX_UNCLAIMED)
        except OSError as exc:
            # Some systems share a port among connections only: then the packets must cross.
            if exc.errno not in (errno.EADDRINUSE, errno.EOPNOTSUPP):
                sock.close()
                raise
        self._news = trio.Event()
        self._sock = trio.socket.from_stdlib_socket(sock)

    def expect(self, remote: Sequence[TcpEndpoint], send: _Sender) -> None:
        """From now on, ``send`` gets what comes from ``remote``."""
        self.waiting[send] = tuple(remote)
        self._news.set()
        self._news = trio.Event()

    async def serve(self) -> None:
        """Accept connections until :meth:`close`."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    accepted, _ = await self._sock.accept()
                except (OSError, trio.ClosedResourceError):
                    break  # Closed, or it could not listen.
                if len(nursery.child_tasks) < MAX_UNCLAIMED:
                    nursery.start_soon(self._deliver, trio.SocketStream(accepted))
                else:
                    accepted.close()
            nursery.cancel_scope.cancel()

    async def _deliver(self, stream: trio.SocketStream) -> None:
        send = None
        try:
            place = TcpEndpoint(*stream.socket.getpeername()[:2])
            with trio.move_on_after(CLAIM_S):
                while (send := self._who_waits_for(place)) is None:
                    await self._news.wait()
            send = send or self._who_waits_for(place, at_any_port=True)
        except OSError:
            pass  # It is gone already.
        finally:
            if send is None:
                await trio.aclose_forcefully(stream)
        if send is not None:
            await _hand_over(stream, send)

    def _who_waits_for(self, place: TcpEndpoint, *, at_any_port: bool = False) -> _Sender | None:
        for send, places in self.waiting.items():
            if place in places or (at_any_port and any(place.host == p.host for p in places)):
                return send
        return None

    def close(self) -> None:
        """Stop listening, at once."""
        self._sock.close()


async def _dial(local: TcpEndpoint, place: TcpEndpoint, retry_s: float, send: _Sender) -> None:
    while True:
        with trio.move_on_after(ATTEMPT_S):
            try:
                sock = trio.socket.from_stdlib_socket(_socket_on(local))
                try:
                    await sock.connect((place.host, place.port))
                except BaseException:
                    sock.close()
                    raise
            except OSError:
                # Refused, as the other side has not sent yet; or the listener has it already.
                await trio.sleep(retry_s)
            else:
                await _hand_over(trio.SocketStream(sock), send)
                # Should it be the wrong one, there will be room for another when it is closed.
                await trio.sleep(retry_s)


async def _hand_over(stream: trio.SocketStream, send: _Sender) -> None:
    try:
        await send.send(stream)
    except trio.BrokenResourceError:
        await trio.aclose_forcefully(stream)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
