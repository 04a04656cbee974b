"""Listening on TCP so that whoever opened the port also closes it.

The library's listener lives in system tasks, outlives its host, shares its port
with any other process that asks for the same (``SO_REUSEPORT``), and keeps an
inbound slot for every connection that was ever made. This one runs in the
nursery that opened it, refuses a port in use, and frees the slot with the
connection.

The first byte of a connection tells whether it is libp2p's or one for bulk, so that
there is one port to open for both.
"""

import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
from libp2p.abc import IListener, IRawConnection
from libp2p.custom_types import THandler
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.transport.exceptions import OpenConnectionError
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from echo2swarm.network.libp2p.gate import Gate, resolve
from echo2swarm.network.libp2p.holepunch_tcp import share_port
from echo2swarm.network.libp2p.socket import OwnedStream
from echo2swarm.network.libp2p.undecided import Undecided
from echo2swarm.system.errors import NetworkError, UsageError
from protocols.bulk import FIRST_BYTE

_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - dialling, not listening

Admit = Callable[[trio.SocketStream], Awaitable[Callable[[], Awaitable[None]] | None]]
"""Takes over a connection for bulk; returns what is left to do for it once it is admitted."""


@dataclass(frozen=True, slots=True)
class BoundPort:
    """A port that is open, and not served yet."""

    maddr: Multiaddr
    """Where it listens; the port is the real one, also if any was asked for."""
    listener: trio.SocketListener


def _parse(listen: str) -> tuple[str, str, int]:
    """Return the address family's name, the host and the port of a multiaddress."""
    match listen.split("/"):
        case ["", ("ip4" | "ip6") as family, host, "tcp", port] if (
            port.isdecimal() and int(port) < 65536
        ):
            return family, host, int(port)
        case _:
            raise UsageError(f"can't listen on {listen!r}: use the form /ip4/0.0.0.0/tcp/4001")


async def bind(listen: Sequence[str]) -> tuple[BoundPort, ...]:
    """Open a port for each multiaddress.

    Raises:
        UsageError: not a multiaddress to listen on.
        NetworkError: a port is in use, not allowed, or the address is not ours.
    """
    bound: list[BoundPort] = []
    try:
        for address in listen:
            family, host, port = _parse(address)
            try:
                (listener,) = await trio.open_tcp_listeners(port, host=host)
            except OSError as exc:
                raise NetworkError(_explain(exc, address, port)) from None
            real_port = listener.socket.getsockname()[1]
            bound.append(BoundPort(Multiaddr(f"/{family}/{host}/tcp/{real_port}"), listener))
    except BaseException:
        await close(bound)
        raise
    return tuple(bound)


async def close(ports: Sequence[BoundPort]) -> None:
    """Close ports; may be called twice."""
    with trio.CancelScope(shield=True):
        for port in ports:
            await port.listener.aclose()


def _explain(exc: OSError, address: str, port: int) -> str:
    match exc.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} is in use ({address}): choose another with --listen, "
                "or stop the other process"
            )
        case errno.EACCES | errno.EPERM:
            return f"not allowed to listen on port {port}: choose one above 1023 with --listen"
        case errno.EADDRNOTAVAIL:
            return f"{address} is no address of this machine: use /ip4/0.0.0.0/tcp/{port}"
        case _:
            return f"can't listen on {address}: {exc.strerror or exc}"


class _Listener(IListener):  # type: ignore[misc]  # untyped library
    """Serves one bound port in a nursery of ours."""

    def __init__(
        self,
        handler: THandler,
        ports: dict[str, BoundPort],
        nursery: trio.Nursery,
        admit: Admit | None,
        undecided: Undecided,
    ) -> None:
        self._handler = handler
        self._ports = ports
        self._nursery = nursery
        self._admit = admit
        self._undecided = undecided
        self._scope = trio.CancelScope()
        self._port: BoundPort | None = None

    async def listen(self, maddr: Multiaddr) -> None:
        self._port = self._ports[str(maddr)]
        self._nursery.start_soon(self._serve, self._port.listener)
        await trio.lowlevel.checkpoint()

    async def _serve(self, listener: trio.SocketListener) -> None:
        with self._scope:
            await trio.serve_listeners(self._accept, [listener])

    async def _accept(self, stream: trio.SocketStream) -> None:
        """Serve a connection; it is closed when this returns."""
        go_on: Callable[[], Awaitable[None]] | None = None
        try:
            address = stream.socket.getpeername()[0]
        except OSError:
            return  # It is gone already.
        with self._undecided.scope(address):
            first = await _first_byte(stream)
            if first == FIRST_BYTE and self._admit is not None:
                go_on = await self._admit(stream)
            elif first is not None:
                go_on = partial(self._serve_libp2p, stream)
        if go_on is not None:
            await go_on()

    async def _serve_libp2p(self, stream: trio.SocketStream) -> None:
        connection = OwnedStream(stream)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._handle, connection)
            # The library's handler waits for the end of the host, and holds one of
            # a bounded number of inbound slots as long: end it with the connection.
            await connection.closed.wait()
            nursery.cancel_scope.cancel()

    async def _handle(self, connection: OwnedStream) -> None:
        try:
            await self._handler(connection)
        except Exception:  # noqa: S110 - garbage, a port scan, a broken handshake: no news
            pass
        finally:
            connection.closed.set()

    def get_addrs(self) -> tuple[Multiaddr, ...]:
        return () if self._port is None else (self._port.maddr,)

    async def close(self) -> None:
        self._scope.cancel()
        if self._port is not None:
            await close([self._port])


async def _connect(host: str, port: int, source: tuple[str, int]) -> trio.SocketStream:
    """Connect from a port that others may share: routers know us by it (:mod:`.punch`).

    The library does so too, but leaves the socket open if it is cancelled.
    """
    sock = trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        share_port(sock)
        await sock.bind(source)
        await sock.connect((host, port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


async def _first_byte(stream: trio.SocketStream) -> int | None:
    """Return the first byte without taking it; None if there will be none."""
    try:
        data = await stream.socket.recv(1, socket.MSG_PEEK)
    except OSError:
        return None
    return data[0] if data else None


class OwnedTcp(TCP):  # type: ignore[misc]  # untyped library
    """The library's TCP transport for dialling, with our listeners."""

    def __init__(
        self, ports: Sequence[BoundPort], nursery: trio.Nursery, admit: Admit | None, gate: Gate
    ) -> None:
        super().__init__()
        self._gate = gate
        self._ports = {str(port.maddr): port for port in ports}
        self._nursery = nursery
        self._admit = admit
        self._undecided = Undecided()

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        """Connect, if the policy lets us; every dial of libp2p's comes here.

        Raises:
            OpenConnectionError: it does not let us, or nobody answers.
        """
        with self._gate.passage(maddr) as where:
            failure: OSError | None = None
            try:
                targets = await resolve(where)
            except OSError as exc:
                targets, failure = (), exc
            for target in targets:
                host, port = target
                try:
                    stream = await _connect(host, port, (_ANY[":" in host], 0))
                except OSError as exc:
                    failure = exc
                else:
                    self._gate.led_to(where, target)
                    return RawConnection(OwnedStream(stream), True)
            raise OpenConnectionError(f"can't connect to {where}: {failure}") from failure

    async def dial_with_source(
        self, maddr: Multiaddr, source: tuple[str, int] | None = None
    ) -> IRawConnection:
        """Connect from whichever port: hole punching is not the library's here."""
        return await self.dial(maddr)

    def create_listener(self, handler_function: THandler) -> _Listener:
        """Return a listener for one of the bound ports."""
        return _Listener(handler_function, self._ports, self._nursery, self._admit, self._undecided)
