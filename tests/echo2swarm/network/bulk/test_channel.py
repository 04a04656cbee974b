"""Bulk connections between real networks, and what strangers may try on the port."""

import gc
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import sha256

import pytest
import trio
import trio.lowlevel

from echo2swarm.network.base import Network, ServeLimits, Stream, call
from echo2swarm.network.bulk import channel, tls
from echo2swarm.network.bulk.dial import Caller, TcpAddress, dial, place_of
from echo2swarm.network.bulk.stream import TlsStream
from echo2swarm.network.libp2p import undecided
from echo2swarm.network.libp2p.adapter import Libp2pNetwork
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.libp2p.streams import Libp2pStream
from echo2swarm.system.errors import NetworkError
from protocols.bulk import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_ID,
    BulkRefused,
    CallBack,
    DialInvitation,
    DialRequest,
    DialTarget,
    Obstacle,
    Reply,
    Request,
)
from protocols.codec import decode, encode
from protocols.framing import frame
from tests.echo2swarm.network.libp2p.test_network import LOOPBACK, identity_of, info_of, port_of

ECHO = "/test/echo/1.0.0"
LIMIT = 1_000_000
CLIENT_HELLO = bytes.fromhex("16030100c4010000c00303")
"""How a TLS connection begins; nothing follows."""


ANYWHERE = Caller(begin=lambda _: True, reached=lambda _: None, failed=lambda _: None)


async def echo(stream: Stream) -> None:
    with suppress(NetworkError):
        while True:
            await stream.send(await stream.receive())


def serve_echo(network: Network) -> None:
    network.serve(ECHO, echo, ServeLimits(max_frame_bytes=LIMIT, max_streams_per_peer=64))


@asynccontextmanager
async def pair(
    *, has_bulk: tuple[bool, bool] = (True, True)
) -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork]]:
    """Yield two networks, the first connected to the second; both serve the echo."""
    async with (
        open_network(identity_of(1), [LOOPBACK], has_bulk=has_bulk[0]) as a,
        open_network(identity_of(2), [LOOPBACK], has_bulk=has_bulk[1]) as b,
    ):
        assert isinstance(a, Libp2pNetwork)
        assert isinstance(b, Libp2pNetwork)
        serve_echo(a)
        serve_echo(b)
        await a.connect(info_of(b))
        yield a, b


async def carrier(opener: Network, to: Network) -> type:
    """Return what carries a bulk stream, after it has carried something."""
    async with opener.open_stream(to.peer, ECHO, max_frame_bytes=LIMIT, bulk=True) as stream:
        await stream.send(bytes(200_000))
        assert await stream.receive() == bytes(200_000)
        assert stream.peer == to.peer
        return type(stream)


async def ask(network: Network, of: Network, request: Request) -> Reply:
    """Make a call about bulk, as another implementation might."""
    frame = encode(request, max_bytes=MAX_MESSAGE_BYTES)
    reply: Reply = decode(
        await call(
            network, of.peer, PROTOCOL_ID, frame, max_reply_bytes=MAX_MESSAGE_BYTES, timeout_s=60
        ),
        Reply,
        max_bytes=MAX_MESSAGE_BYTES,
    )
    return reply


async def offered(network: Network, of: Network) -> DialTarget:
    reply = await ask(network, of, DialRequest(ECHO))
    assert isinstance(reply, DialInvitation)
    return reply.entrance


@asynccontextmanager
async def tls_to(network: Network) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(network))
    async with trio.SSLStream(stream, tls.dialling(), https_compatible=True) as secure:
        await secure.do_handshake()
        yield secure


async def is_closed(stream: trio.abc.Stream) -> bool:
    """Whether the other side closes the connection, and says nothing."""
    with trio.fail_after(60):
        try:
            return await stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            return True


# Who dials whom.


async def test_bulk_goes_over_tls_to_the_port_of_libp2p_and_control_does_not() -> None:
    async with pair() as (a, b):
        assert await carrier(a, b) is TlsStream
        assert await carrier(b, a) is TlsStream
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as control:
            assert type(control) is Libp2pStream

        assert len(a._host.get_network().get_connections()) == 1


@pytest.mark.parametrize("opener", ["who listens", "who does not"])
async def test_one_of_two_that_can_be_dialled_is_enough(opener: str) -> None:
    async with (
        open_network(identity_of(1), []) as a,
        open_network(identity_of(2), [LOOPBACK]) as b,
    ):
        serve_echo(a)
        serve_echo(b)
        await a.connect(info_of(b))

        for _ in range(2):
            chosen = (b, a) if opener == "who listens" else (a, b)
            assert await carrier(*chosen) is TlsStream


@pytest.mark.parametrize("has_bulk", [(True, False), (False, True), (False, False)])
async def test_libp2p_carries_bulk_to_and_from_who_does_not_speak_it(
    has_bulk: tuple[bool, bool],
) -> None:
    async with pair(has_bulk=has_bulk) as (a, b):
        assert await carrier(a, b) is Libp2pStream
        assert await carrier(b, a) is Libp2pStream


async def test_libp2p_carries_bulk_where_nobody_can_dial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_dials = 0

    async def nowhere(*_: object) -> None:
        nonlocal num_dials
        num_dials += 1
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(channel, "dial", nowhere)
    async with pair() as (a, b):
        assert await carrier(a, b) is Libp2pStream
        assert num_dials == 2  # there and back
        assert await carrier(a, b) is Libp2pStream
        assert num_dials == 2  # it is remembered


async def test_more_streams_than_one_peer_may_have_go_over_libp2p() -> None:
    async with pair() as (a, b), AsyncExitStack() as stack:
        kinds = []
        for _ in range(channel.MAX_STREAMS_PER_PEER + 2):
            stream = await stack.enter_async_context(
                a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT, bulk=True)
            )
            kinds.append(type(stream))
            await stream.send(b"x")
            assert await stream.receive() == b"x"

    assert kinds == [TlsStream] * channel.MAX_STREAMS_PER_PEER + [Libp2pStream] * 2


async def test_what_is_not_served_is_not_offered() -> None:
    async with pair() as (a, b):
        refused = BulkRefused(Obstacle.UNKNOWN_PROTOCOL)

        assert await ask(a, b, DialRequest("/test/unknown/1.0.0")) == refused
        entrance = DialTarget(bytes(32), bytes(32), ())
        assert await ask(a, b, CallBack("/test/unknown/1.0.0", entrance)) == refused


# Strangers.


@pytest.mark.parametrize(
    "spoil",
    [lambda _: bytes(32), lambda token: token[:-1] + bytes([token[-1] ^ 1])],
    ids=["made up", "almost right"],
)
async def test_without_the_token_nobody_gets_in(spoil: Callable[[bytes], bytes]) -> None:
    async with pair() as (a, b):
        entrance = await offered(a, b)
        async with tls_to(b) as stream:
            await stream.send_all(spoil(entrance.token) + frame(b"let me in"))
            assert await is_closed(stream)

        assert await carrier(a, b) is TlsStream


async def test_a_token_lets_in_once() -> None:
    async with pair() as (a, b):
        entrance = await offered(a, b)
        async with tls_to(b) as first, tls_to(b) as second:
            await first.send_all(entrance.token + frame(b"hello"))
            assert await first.receive_some(9) == frame(b"hello")

            await second.send_all(entrance.token + frame(b"hello"))
            assert await is_closed(second)


async def test_who_shows_another_certificate_is_not_shown_the_token() -> None:
    got = bytearray()
    is_over = trio.Event()
    context = tls.Certificate().accepting()
    named = tls.Certificate().sha256

    async def impostor(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, context, server_side=True)
        with suppress(trio.BrokenResourceError):
            got.extend(await secure.receive_some(100))
        is_over.set()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, impostor, [listener])
        where = f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"

        reached = await dial(
            [where],
            DialTarget(named, bytes(32), ()),
            tls.dialling(),
            trio.CapacityLimiter(1),
            ANYWHERE,
        )
        with trio.fail_after(60):
            await is_over.wait()
        nursery.cancel_scope.cancel()

    assert reached is None
    assert not got


async def test_a_dead_or_wrong_address_does_not_keep_from_the_right_one() -> None:
    async with pair() as (a, b):
        entrance = await offered(a, b)
        others = ("/ip4/127.0.0.1/tcp/1", info_of(a).addresses[0], "/ip4/10.0.0.1/udp/1", "x")
        connection = await dial(
            (*others, *info_of(b).addresses),
            entrance,
            tls.dialling(),
            trio.CapacityLimiter(1),
            ANYWHERE,
        )

        assert connection is not None
        assert sha256(connection.ssl.getpeercert(binary_form=True) or b"").digest() == (
            entrance.certificate_sha256
        )
        connection.cut()


async def test_another_protocol_over_tls_and_old_tls_are_refused() -> None:
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
    old = tls.dialling()
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2

    async with pair() as (a, b):
        for context in (other, old):
            entrance = await offered(a, b)
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(b))
            async with trio.SSLStream(stream, context, https_compatible=True) as secure:
                with suppress(trio.BrokenResourceError):
                    await secure.send_all(entrance.token + frame(b"hello"))
                assert await is_closed(secure)


@pytest.mark.parametrize(
    "garbage",
    [CLIENT_HELLO, CLIENT_HELLO + bytes(200), b"\x16" + b"\xff" * 70_000, b"\x16"],
    ids=["half a greeting", "a broken greeting", "noise", "one byte"],
)
async def test_garbage_that_looks_like_tls_harms_nobody(garbage: bytes) -> None:
    async with pair() as (a, b):
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(b))
            with suppress(trio.BrokenResourceError):
                await stream.send_all(garbage)
            await stream.aclose()

        assert await carrier(a, b) is TlsStream


silent = pytest.mark.parametrize("first", [b"", CLIENT_HELLO], ids=["nothing", "half a greeting"])


@silent
async def test_of_a_crowd_of_silent_connections_the_oldest_make_room(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undecided, "DECIDE_S", 60.0)
    monkeypatch.setattr(channel, "HANDSHAKE_S", 60.0)
    async with pair() as (a, b), AsyncExitStack() as stack:
        crowd = []
        for _ in range(undecided.MAX_UNDECIDED + 50):
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(b))
            crowd.append(await stack.enter_async_context(stream))
            await stream.send_all(first)

        assert await carrier(a, b) is TlsStream
        for stream in crowd[:50]:
            assert await is_closed(stream)


@silent
async def test_who_does_not_say_what_it_wants_is_closed_in_time(first: bytes) -> None:
    async with pair() as (_, b), await trio.open_tcp_stream("127.0.0.1", port_of(b)) as stream:
        await stream.send_all(first)
        assert await is_closed(stream)


async def test_a_silent_holder_of_a_token_is_let_go() -> None:
    async with pair() as (_, b), tls_to(b) as stream:
        assert await is_closed(stream)


async def test_of_too_many_bulk_streams_one_of_whoever_holds_most_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "MAX_STREAMS", 4)
    async with (
        pair() as (greedy, server),
        open_network(identity_of(3), [LOOPBACK]) as newcomer,
        AsyncExitStack() as stack,
    ):
        await newcomer.connect(info_of(server))
        held = []
        for _ in range(4):
            stream = await stack.enter_async_context(
                greedy.open_stream(server.peer, ECHO, max_frame_bytes=LIMIT, bulk=True)
            )
            await stream.send(b"mine")
            assert await stream.receive() == b"mine"
            held.append(stream)

        assert await carrier(newcomer, server) is TlsStream
        with trio.fail_after(60), pytest.raises(NetworkError):
            await held[0].receive()
        await held[3].send(b"still here")
        assert await held[3].receive() == b"still here"


# Behaviour of one connection.


async def test_a_frame_in_records_of_one_byte_arrives() -> None:
    data = os.urandom(3000)
    async with pair() as (a, b):
        entrance = await offered(a, b)
        async with tls_to(b) as stream:
            for byte in entrance.token + frame(data):
                await stream.send_all(bytes([byte]))
            got = b""
            while len(got) < len(frame(data)):
                got += await stream.receive_some(1 << 20)

    assert got == frame(data)


async def test_an_end_in_mid_frame_is_an_error_and_no_frame() -> None:
    outcome: list[str] = []
    is_over = trio.Event()

    async def read(stream: Stream) -> None:
        try:
            await stream.receive()
        except NetworkError as exc:
            outcome.append(str(exc))
        is_over.set()

    async with pair() as (a, b):
        b.serve(ECHO, read, ServeLimits(max_frame_bytes=LIMIT))
        entrance = await offered(a, b)
        async with tls_to(b) as stream:
            await stream.send_all(entrance.token + frame(bytes(100_000))[:50_000])
            await stream.transport_stream.send_eof()
            with trio.fail_after(60):
                await is_over.wait()

    assert "mid-frame" in outcome[0]


async def test_a_reader_that_takes_nothing_holds_its_writer_back() -> None:
    sent_bytes = 0

    async def idle(_: Stream) -> None:
        await trio.sleep_forever()

    async with pair() as (a, b):
        b.serve(ECHO, idle, ServeLimits(max_frame_bytes=LIMIT))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT, bulk=True) as stream:
            with trio.move_on_after(2):
                while True:
                    await stream.send(bytes(10_000))
                    sent_bytes += 10_000

    assert 0 < sent_bytes < 64_000_000  # what the system buffers


async def test_disconnecting_breaks_bulk_streams_at_once() -> None:
    async with (
        pair() as (a, b),
        a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT, bulk=True) as stream,
    ):
        await a.disconnect(b.peer)
        with trio.fail_after(60), pytest.raises(NetworkError):
            await stream.receive()
        with pytest.raises(NetworkError):
            await stream.send(b"x")


async def test_closing_leaves_no_socket_whoever_was_in_the_middle_of_what() -> None:
    def num_open() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    async with pair() as (a, b):  # what is opened once and for all
        assert await carrier(a, b) is TlsStream
    before = num_open()

    async with pair() as (a, b), trio.open_nursery() as nursery:
        for i in range(30):
            with trio.move_on_after(0.002 * i):
                await carrier(a, b)
        nursery.start_soon(carrier, a, b)
        await trio.sleep(0.02)
        nursery.cancel_scope.cancel()

    with trio.move_on_after(60):
        while num_open() > before:  # noqa: ASYNC110 - the system closes in its own time
            await trio.sleep(0.05)
    assert num_open() <= before


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/ip4/203.0.113.7/tcp/4150", TcpAddress("203.0.113.7", 4150)),
        ("/ip6/2001:db8::1/tcp/1", TcpAddress("2001:db8::1", 1)),
        ("/dns4/example.org/tcp/65535", TcpAddress("example.org", 65535)),
        ("/ip4/203.0.113.7/udp/4150", None),
        ("/ip4/203.0.113.7/tcp/0", None),
        ("/ip4/203.0.113.7/tcp/65536", None),
        ("/ip4/203.0.113.7/tcp/4150/ws", None),
        ("/ip4/203.0.113.7/tcp/4150/p2p/x/p2p-circuit", None),
        ("/ip4//tcp/4150", None),
        ("", None),
    ],
)
def test_only_plain_tcp_is_dialled(address: str, place: TcpAddress | None) -> None:
    assert place_of(address) == place
