"""TCP connections made from both ends at once, on loopback; routers are in test_nat."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from echo2swarm.network.libp2p.holepunch_tcp import Puncher, share_port
from protocols.holepunch import TcpEndpoint


@pytest.fixture
def puncher(nursery: trio.Nursery) -> Puncher:
    return Puncher(nursery)


@asynccontextmanager
async def line_from_shared_port() -> AsyncIterator[TcpEndpoint]:
    """Keep a connection open whose port may be shared, as those to a go-between are."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        sock = trio.socket.socket()
        share_port(sock)
        await sock.bind(("127.0.0.1", 0))
        await sock.connect(listener.socket.getsockname())
        async with trio.SocketStream(sock):
            yield TcpEndpoint(*sock.getsockname())


async def test_both_ends_get_the_same_connection(puncher: Puncher) -> None:
    async with (
        line_from_shared_port() as a,
        line_from_shared_port() as b,
        puncher.connections(a, [b], retry_s=0.02) as at_a,
        puncher.connections(b, [a], retry_s=0.03) as at_b,
    ):
        with trio.fail_after(60):
            one, other = await at_a.receive(), await at_b.receive()
            async with one, other:
                assert one.socket.getsockname() == other.socket.getpeername() == a
                assert one.socket.getpeername() == other.socket.getsockname() == b
                await one.send_all(b"hello")
                assert await other.receive_some(10) == b"hello"


async def test_the_other_end_may_come_later(puncher: Puncher) -> None:
    async with (
        line_from_shared_port() as a,
        line_from_shared_port() as b,
        puncher.connections(a, [b], retry_s=0.02) as at_a,
    ):
        await trio.sleep(0.1)
        async with puncher.connections(b, [a], retry_s=0.03):
            with trio.fail_after(60):
                await (await at_a.receive()).aclose()


async def test_one_wrong_place_does_no_harm(puncher: Puncher) -> None:
    async with line_from_shared_port() as a, line_from_shared_port() as b:
        nowhere = TcpEndpoint("127.0.0.1", 1)
        async with (
            puncher.connections(a, [nowhere, b], retry_s=0.02) as at_a,
            puncher.connections(b, [nowhere, a], retry_s=0.03),
        ):
            with trio.fail_after(60):
                async with await at_a.receive() as stream:
                    assert stream.socket.getpeername() == b


async def test_who_comes_before_it_is_expected_is_kept_for_who_expects_it(
    puncher: Puncher,
) -> None:
    async with (
        line_from_shared_port() as a,
        line_from_shared_port() as b,
        line_from_shared_port() as c,
        puncher.connections(a, [c], retry_s=0.02) as for_c,
        puncher.connections(b, [a], retry_s=10) as at_b,
    ):
        with trio.fail_after(60):
            stream = await at_b.receive()
            await trio.sleep(0.1)
            async with (
                stream,
                puncher.connections(a, [b], retry_s=10) as for_b,
                await for_b.receive() as other,
            ):
                assert other.socket.getpeername() == b
        with pytest.raises(trio.WouldBlock):
            for_c.receive_nowait()


async def test_a_router_may_use_another_port_than_the_one_that_was_seen(puncher: Puncher) -> None:
    async with (
        line_from_shared_port() as a,
        line_from_shared_port() as b,
        puncher.connections(a, [TcpEndpoint(b.host, 1024)], retry_s=0.02) as at_a,
        puncher.connections(b, [a], retry_s=0.02),
    ):
        with trio.fail_after(60):
            async with await at_a.receive() as stream:
                assert stream.socket.getpeername() == b


async def test_a_stranger_who_comes_meanwhile_is_not_let_in(puncher: Puncher) -> None:
    async with (
        line_from_shared_port() as a,
        puncher.connections(a, [TcpEndpoint("127.0.0.9", 1)], retry_s=0.02) as at_a,
    ):
        with trio.fail_after(60):
            stream = await trio.open_tcp_stream(a.host, a.port)
            async with stream:
                assert await stream.receive_some(1) == b""
        with pytest.raises(trio.WouldBlock):
            at_a.receive_nowait()


async def test_nothing_is_left_of_it(puncher: Puncher) -> None:
    async with line_from_shared_port() as a:
        async with line_from_shared_port() as b, puncher.connections(a, [b], retry_s=0.02):
            await trio.sleep(0.05)
        with pytest.raises(OSError, match="failed"):
            await trio.open_tcp_stream(a.host, a.port)


async def test_a_connection_that_nobody_took_is_closed(puncher: Puncher) -> None:
    async with (
        line_from_shared_port() as a,
        line_from_shared_port() as b,
        puncher.connections(a, [b], retry_s=0.02) as at_a,
    ):
        async with puncher.connections(b, [a], retry_s=0.03):
            with trio.fail_after(60):
                stream = await at_a.receive()
        async with stream:
            with trio.fail_after(60), suppress(trio.BrokenResourceError):
                assert await stream.receive_some(1) == b""


async def test_a_port_that_is_not_shared_is_an_error_at_once(puncher: Puncher) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            async with puncher.connections(TcpEndpoint(*taken.getsockname()), [], retry_s=0.02):
                pytest.fail("not reached")


async def test_meetings_on_one_port_do_not_take_each_others_connections(
    nursery: trio.Nursery, puncher: Puncher
) -> None:
    async with line_from_shared_port() as a:

        async def meet() -> None:
            async with (
                line_from_shared_port() as other,
                puncher.connections(a, [other], retry_s=0.02) as here,
                Puncher(nursery).connections(other, [a], retry_s=0.03) as there,
                await here.receive() as one,
                await there.receive() as two,
            ):
                assert one.socket.getpeername() == two.socket.getsockname() == other

        with trio.fail_after(60):
            async with trio.open_nursery() as meetings:
                for _ in range(10):
                    meetings.start_soon(meet)
