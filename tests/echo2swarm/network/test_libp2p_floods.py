"""Peers whose libp2p sends more than it was given room for."""

import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import trio
from libp2p.abc import INetConn
from libp2p.stream_muxer.yamux.yamux import TYPE_DATA, YAMUX_HEADER_FORMAT

from echo2swarm.network.admission import connection_seats, unread
from echo2swarm.network.base import Network, ServeLimits, Stream
from echo2swarm.network.libp2p import negotiation
from echo2swarm.network.libp2p.adapter import Libp2pNetwork
from echo2swarm.network.libp2p.connections import OPEN_S
from echo2swarm.network.libp2p.endpoints import open_connections
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.libp2p.streams import Libp2pStream
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from tests.contracts.network_worlds import eventually, info_of, key_of
from tests.contracts.test_network import ask, serve_echo

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
IGNORE = "/test/ignore/1.0.0"
WINDOW_BYTES = 256 * 1024
PIECE = bytes(50_000)


async def ignore(_stream: Stream) -> None:
    await trio.sleep_forever()


@asynccontextmanager
async def server_and(*numbers: int) -> AsyncIterator[list[Libp2pNetwork]]:
    """Yield a server that reads nothing of IGNORE, and peers that are connected to it."""
    async with AsyncExitStack() as stack:
        networks = []
        for number in (1, *numbers):
            opened = open_network(Identity.of(key_of(number)), [LOOPBACK], has_bulk=False)
            network = await stack.enter_async_context(opened)
            assert isinstance(network, Libp2pNetwork)
            networks.append(network)
        server, *others = networks
        serve_echo(server)
        server.serve(IGNORE, ignore, ServeLimits(max_frame_bytes=2**24))
        for other in others:
            await other.connect(info_of(server))
        yield networks


def connection_of(network: Libp2pNetwork, server: Network) -> INetConn:
    return open_connections(network._host, server.peer)[0]


async def write(stream: Stream, data: bytes) -> None:
    """Send data on a stream, whatever room there is."""
    assert isinstance(stream, Libp2pStream)
    header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream._muxed.stream_id, len(data))
    await stream.connection.secured_conn.write(header + data)


async def until_apart(server: Network, other: Network) -> None:
    async def are_apart() -> bool:
        return other.peer not in server.connected_peers()

    await eventually(are_apart)


async def test_who_sends_beyond_the_window_is_disconnected() -> None:
    async with server_and(2, 3) as (server, rude, honest):
        with suppress(NetworkError):
            async with rude.open_stream(server.peer, IGNORE, max_frame_bytes=9) as stream:
                with suppress(Exception):  # The connection breaks on the way, as it should.
                    for _ in range(16 * WINDOW_BYTES // len(PIECE)):
                        await write(stream, PIECE)
                await until_apart(server, rude)

        assert await ask(honest, server.peer, b"hello") == b"hello"


async def test_who_stays_within_the_window_is_not_disconnected() -> None:
    async with (
        server_and(2) as (server, honest),
        honest.open_stream(server.peer, IGNORE, max_frame_bytes=9) as stream,
    ):
        for _ in range(WINDOW_BYTES // len(PIECE)):
            await write(stream, PIECE)

        assert await ask(honest, server.peer, b"hello") == b"hello"


async def test_who_holds_most_unread_is_disconnected_when_it_is_too_much_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unread, "MAX_STRANGERS_BYTES", 500_000)
    async with (
        server_and(2, 3) as (server, rude, honest),
        honest.open_stream(server.peer, IGNORE, max_frame_bytes=9) as small,
        AsyncExitStack() as stack,
    ):
        await write(small, PIECE)
        for _ in range(4):
            stream = await stack.enter_async_context(
                rude.open_stream(server.peer, IGNORE, max_frame_bytes=9)
            )
            for _ in range(3):
                await write(stream, PIECE)

        await until_apart(server, rude)

        assert honest.peer in server.connected_peers()


async def test_who_opens_stream_upon_stream_is_disconnected() -> None:
    async with server_and(2, 3) as (server, rude, honest):
        muxed = connection_of(rude, server).muxed_conn
        with trio.move_on_after(OPEN_S):
            for _ in range(200):
                try:
                    await muxed.open_stream()
                except Exception:
                    break

        await until_apart(server, rude)

        assert await ask(honest, server.peer, b"hello") == b"hello"


async def test_streams_that_say_nothing_are_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negotiation, "NEGOTIATE_S", 1)
    async with server_and(2) as (server, slow):
        muxed = connection_of(slow, server).muxed_conn
        silent = [await muxed.open_stream() for _ in range(3)]

        async def are_ended() -> bool:
            return all(stream.reset_received for stream in silent)

        await eventually(are_ended)


async def test_who_has_silent_streams_is_served_on_others() -> None:
    async with server_and(2) as (server, slow):
        muxed = connection_of(slow, server).muxed_conn
        for _ in range(negotiation.MAX_UNDECIDED_PER_PEER + 3):
            await muxed.open_stream()

        assert await ask(slow, server.peer, b"hello") == b"hello"


async def test_of_silent_streams_of_all_those_of_whoever_has_most_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(negotiation, "MAX_UNDECIDED", 8)
    async with server_and(2, 3) as (server, rude, honest):
        muxed = connection_of(rude, server).muxed_conn
        for _ in range(8):
            await muxed.open_stream()

        assert await ask(honest, server.peer, b"hello") == b"hello"


async def test_from_where_a_flood_came_nobody_connects_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than the flood takes to be noticed, however slow the machine.
    monkeypatch.setattr(connection_seats, "SHUT_OUT_S", 600.0)
    late = open_network(Identity.of(key_of(4)), [LOOPBACK], has_bulk=False)
    async with server_and(2, 3) as (server, rude, honest), late as newcomer:
        with suppress(NetworkError):
            async with rude.open_stream(server.peer, IGNORE, max_frame_bytes=9) as stream:
                with suppress(Exception):  # The connection breaks on the way, as it should.
                    for _ in range(16 * WINDOW_BYTES // len(PIECE)):
                        await write(stream, PIECE)
                await until_apart(server, rude)

        with pytest.raises(NetworkError):
            await newcomer.connect(info_of(server))
        assert await ask(honest, server.peer, b"hello") == b"hello"
