"""What meetings need to know of connections: where they lead, who dialled, streams on just one."""

import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from libp2p.abc import IHost, INetConn, INetStream
from libp2p.peer.id import ID

from echo2swarm.network.base import Stream
from echo2swarm.network.libp2p.streams import Libp2pStream
from echo2swarm.network.libp2p.yamux import BulkYamux
from echo2swarm.network.served_stream import ServedStream
from protocols.holepunch import MAX_BYTES, TcpEndpoint
from protocols.ids import PeerId

Negotiate = Callable[[INetConn, PeerId, str], Awaitable[INetStream]]
"""Opens a stream of a protocol on a connection to a peer, or raises NetworkError."""


def open_connections(host: IHost, peer: PeerId) -> list[INetConn]:
    """Return the live connections to ``peer``, the oldest first."""
    return [
        connection
        for connection in host.get_network().get_connections(ID.from_string(peer))
        if not connection.is_closed and connection.muxed_conn.is_established
    ]


def connection_to(host: IHost, peer: PeerId, *, is_dialled: bool) -> INetConn | None:
    """Return a connection to ``peer`` that we dialled, or else that it dialled."""
    connections = open_connections(host, peer)
    return next((c for c in connections if c.muxed_conn.is_initiator is is_dialled), None)


def muxed_of(stream: Stream) -> BulkYamux:
    """Return the connection on which an incoming stream of ours came."""
    if isinstance(stream, ServedStream):
        stream = stream.inner
    if not isinstance(stream, Libp2pStream):
        raise TypeError(f"{type(stream).__name__} is no stream of libp2p's")
    return stream.connection


def ends_of(muxed: BulkYamux) -> tuple[TcpEndpoint, TcpEndpoint]:
    """Return our end of a connection, and the other as we see it."""
    raw = muxed.secured_conn.conn.read_writer.read_write_closer
    return ends_of_socket(raw.stream.stream.socket)


def ends_of_socket(sock: trio.socket.SocketType) -> tuple[TcpEndpoint, TcpEndpoint]:
    """Return the local and the remote end of a connected socket."""
    return _place(sock.getsockname()), _place(sock.getpeername())


def _place(name: tuple[str, int, *tuple[int, ...]]) -> TcpEndpoint:
    address = ipaddress.ip_address(name[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # A port open for both kinds shows them like this.
    return TcpEndpoint(str(address), name[1])


@asynccontextmanager
async def stream_on(
    connection: INetConn, peer: PeerId, protocol: str, negotiate: Negotiate
) -> AsyncIterator[Libp2pStream]:
    """Open a stream on this very connection."""
    wrapped = Libp2pStream(await negotiate(connection, peer, protocol), peer, MAX_BYTES)
    is_done = False
    try:
        yield wrapped
        is_done = True
    finally:
        await wrapped.finish(is_done=is_done)
