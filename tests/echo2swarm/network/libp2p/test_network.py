"""What only the real adapter can get wrong; the common promises are in tests/contracts."""

import contextlib
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from libp2p import new_host
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import MAX_WINDOW_SIZE, Yamux
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from multiaddr import Multiaddr

from echo2swarm.network.addresses import group_by_peer, split_address
from echo2swarm.network.base import Network, PeerInfo, ServeLimits, Stream
from echo2swarm.network.discovery import Discovery
from echo2swarm.network.libp2p.adapter import Libp2pNetwork
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.libp2p.yamux import BulkYamux
from echo2swarm.network.rpc import call, serve_calls
from echo2swarm.system.errors import NetworkError, UsageError
from echo2swarm.system.identity import Identity
from protocols import advert
from protocols.advert import NodeAdvert
from protocols.ids import PeerId, RunId
from tests.contracts.network_worlds import eventually

ECHO = "/test/echo/1.0.0"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def identity_of(number: int) -> Identity:
    return Identity.of(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def info_of(network: Network) -> PeerInfo:
    (info,) = group_by_peer(network.addresses())
    return info


def port_of(network: Network) -> int:
    return int(network.addresses()[0].split("/")[4])


def serve_echo(network: Network) -> None:
    async def echo(_peer: PeerId, request: bytes) -> bytes:
        return request

    serve_calls(network, ECHO, echo, max_request_bytes=100, max_reply_bytes=100, timeout_s=60)


async def ask(network: Network, peer: PeerId) -> bytes:
    return await call(network, peer, ECHO, b"hello", max_reply_bytes=100, timeout_s=60)


@asynccontextmanager
async def stock_host(listen: list[Multiaddr]) -> AsyncIterator[IHost]:
    """The library as it comes, but for plaintext."""
    key_pair = create_new_key_pair(bytes(32))
    noise = Noise(key_pair, noise_privkey=create_new_x25519_key_pair().private_key)
    host = new_host(
        key_pair=key_pair,
        listen_addrs=listen,
        sec_opt={NOISE: noise},
        muxer_opt={TProtocol(YAMUX): Yamux},
    )
    async with host.run(listen):
        yield host
        await host.close()


def plaintext_host(listen: list[Multiaddr]) -> object:
    key_pair = create_new_key_pair(bytes(32))
    return new_host(
        key_pair=key_pair,
        listen_addrs=listen,
        sec_opt={TProtocol(PLAINTEXT_PROTOCOL_ID): InsecureTransport(key_pair)},
    )


async def test_a_client_without_encryption_is_refused() -> None:
    async with open_network(identity_of(1), [LOOPBACK]) as network:
        host = plaintext_host([])
        async with host.run([]):  # type: ignore[attr-defined]
            info = info_from_p2p_addr(Multiaddr(network.addresses()[0]))
            with trio.move_on_after(5), pytest.raises(Exception):  # noqa: B017, PT011
                await host.connect(info)  # type: ignore[attr-defined]
            await host.close()  # type: ignore[attr-defined]

        assert network.connected_peers() == frozenset()


async def test_a_server_without_encryption_is_not_talked_to() -> None:
    listen = Multiaddr(LOOPBACK)
    host = plaintext_host([listen])
    async with host.run([listen]):  # type: ignore[attr-defined]
        peer, where = split_address(str(host.get_addrs()[0]))  # type: ignore[attr-defined]
        async with open_network(identity_of(1), []) as network:
            with pytest.raises(NetworkError):
                await network.connect(PeerInfo(peer=peer, addresses=(where,)))
        await host.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"\x13/multistream/1.0.0\n" + b"\xff" * 99],
    ids=["nothing", "http", "ones", "bad handshake"],
)
async def test_garbage_on_the_port_harms_nobody(garbage: bytes) -> None:
    async with (
        open_network(identity_of(1), [LOOPBACK]) as a,
        open_network(identity_of(2), [LOOPBACK]) as b,
    ):
        serve_echo(b)
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(b))
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(garbage)
            await stream.aclose()

        await a.connect(info_of(b))
        assert await ask(a, b.peer) == b"hello"


async def test_connections_that_ended_do_not_use_up_the_limit() -> None:
    async with open_network(identity_of(1), [LOOPBACK], max_connections=3) as server:
        serve_echo(server)
        async with open_network(identity_of(2), []) as client:
            for _ in range(6):
                await client.connect(info_of(server))
                assert await ask(client, server.peer) == b"hello"
                await client.disconnect(server.peer)


async def test_what_the_stock_library_speaks_is_understood_and_the_other_way_round() -> None:
    frame = random.Random(1).randbytes(3_000_000)  # many windows long

    async def echo(stream: Stream) -> None:
        await stream.send(await stream.receive())

    async with open_network(identity_of(1), [LOOPBACK]) as network, stock_host([]) as host:
        network.serve(ECHO, echo, ServeLimits(max_frame_bytes=len(frame)))
        await host.connect(info_from_p2p_addr(Multiaddr(network.addresses()[0])))
        stream = await host.new_stream(ID.from_string(network.peer), [TProtocol(ECHO)])
        received = bytearray()
        with trio.fail_after(120):
            # In frames as large as yamux allows, which are two Noise messages each.
            await stream.write(len(frame).to_bytes(4, "big") + frame)
            while len(received) < 4 + len(frame):
                received += await stream.read(1 << 20)

    assert received[4:] == frame


async def test_a_frame_of_many_windows_passes_while_small_ones_go_both_ways() -> None:
    large, num_small = bytes(5_000_000), 200

    async def answer(stream: Stream) -> None:
        while (frame := await stream.receive()) != b"last":
            await stream.send(frame)

    async def send_small(stream: Stream) -> None:
        for number in range(num_small):
            await stream.send(b"%d" % number)
        await stream.send(b"last")

    async with (
        open_network(identity_of(1), []) as a,
        open_network(identity_of(2), [LOOPBACK]) as b,
        trio.open_nursery() as nursery,
    ):
        b.serve(ECHO, answer, ServeLimits(max_frame_bytes=len(large), max_streams_per_peer=9))
        await a.connect(info_of(b))
        with trio.fail_after(120):
            async with (
                a.open_stream(b.peer, ECHO, max_frame_bytes=len(large)) as bulk,
                a.open_stream(b.peer, ECHO, max_frame_bytes=99) as control,
            ):
                nursery.start_soon(bulk.send, large)
                nursery.start_soon(send_small, control)
                got = [await control.receive() for _ in range(num_small)]
                assert await bulk.receive() == large
                await bulk.send(b"last")

    assert got == [b"%d" % number for number in range(num_small)]


async def test_every_connection_has_the_guarded_muxer() -> None:
    async with (
        open_network(identity_of(1), []) as a,
        open_network(identity_of(2), [LOOPBACK]) as b,
    ):
        await a.connect(info_of(b))

        async def both_see_it() -> bool:
            return bool(a.connected_peers() and b.connected_peers())

        await eventually(both_see_it)
        for network in (a, b):
            assert isinstance(network, Libp2pNetwork)
            (connection,) = network._host.get_network().get_connections()
            assert type(connection.muxed_conn) is BulkYamux


async def test_a_reader_that_takes_nothing_holds_its_writer_back() -> None:
    sent_bytes = 0

    async def idle(_stream: Stream) -> None:
        await trio.sleep_forever()

    async with (
        open_network(identity_of(1), []) as a,
        open_network(identity_of(2), [LOOPBACK]) as b,
    ):
        b.serve(ECHO, idle, ServeLimits(max_frame_bytes=200_000))
        await a.connect(info_of(b))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=99) as stream:
            with trio.move_on_after(2):
                while True:
                    await stream.send(bytes(100_000))
                    sent_bytes += 100_000

    assert 0 < sent_bytes <= MAX_WINDOW_SIZE


async def test_half_a_frame_is_an_error_and_never_a_frame() -> None:
    outcome: list[bytes | Exception] = []
    is_over = trio.Event()

    async def read(stream: Stream) -> None:
        try:
            outcome.append(await stream.receive())
        except NetworkError as exc:
            outcome.append(exc)
        is_over.set()

    async with (
        open_network(identity_of(1), []) as a,
        open_network(identity_of(2), [LOOPBACK]) as b,
    ):
        b.serve(ECHO, read, ServeLimits(max_frame_bytes=100))
        await a.connect(info_of(b))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=100) as stream:
            # Below the port: a length of ten, and then only four bytes and a clean end.
            await stream._stream.write(b"\x00\x00\x00\x0afour")  # type: ignore[attr-defined]
        with trio.fail_after(60):
            await is_over.wait()

    assert [type(each) for each in outcome] == [NetworkError]
    assert "mid-frame" in str(outcome[0])


async def test_bulk_that_libp2p_carries_goes_over_a_connection_of_its_own() -> None:
    async def hold(stream: Stream) -> None:
        await stream.receive()

    async with (
        open_network(identity_of(1), [LOOPBACK], has_bulk=False) as a,
        open_network(identity_of(2), [LOOPBACK], has_bulk=False) as b,
    ):
        assert isinstance(a, Libp2pNetwork)
        for network in (a, b):
            network.serve(ECHO, hold, ServeLimits(max_frame_bytes=100))
        await a.connect(info_of(b))
        async with (
            a.open_stream(b.peer, ECHO, max_frame_bytes=100) as control,
            a.open_stream(b.peer, ECHO, max_frame_bytes=100, bulk=True) as bulk,
            a.open_stream(b.peer, ECHO, max_frame_bytes=100) as later_control,
            a.open_stream(b.peer, ECHO, max_frame_bytes=100, bulk=True) as later_bulk,
            b.open_stream(a.peer, ECHO, max_frame_bytes=100) as control_back,
            b.open_stream(a.peer, ECHO, max_frame_bytes=100, bulk=True) as bulk_back,
        ):

            def local_port(stream: Stream) -> tuple[int, int]:
                muxed = stream._muxed.conn  # type: ignore[attr-defined]
                raw = muxed.secured_conn.conn.read_writer.read_write_closer.stream.stream.socket
                ends = (raw.getsockname()[1], raw.getpeername()[1])
                return min(ends), max(ends)

            assert local_port(control) == local_port(later_control) == local_port(control_back)
            assert local_port(bulk) == local_port(later_bulk) == local_port(bulk_back)
            assert local_port(control) != local_port(bulk)


async def test_bulk_to_a_peer_that_can_not_be_dialled_shares_the_connection() -> None:
    async def greet(stream: Stream) -> None:
        await stream.send(b"hello")

    async with (
        open_network(identity_of(1), [], has_bulk=False) as behind_a_router,
        open_network(identity_of(2), [LOOPBACK]) as b,
    ):
        behind_a_router.serve(ECHO, greet, ServeLimits(max_frame_bytes=100))
        await behind_a_router.connect(info_of(b))
        async with b.open_stream(
            behind_a_router.peer, ECHO, max_frame_bytes=100, bulk=True
        ) as stream:
            assert await stream.receive() == b"hello"


async def test_listening_on_every_interface_advertises_concrete_addresses() -> None:
    async with open_network(identity_of(1), ["/ip4/0.0.0.0/tcp/0"]) as network:
        addresses = network.addresses()

    assert addresses
    assert not any("/0.0.0.0/" in address or "/tcp/0/" in address for address in addresses)
    others = [address for address in addresses if "/127." not in address]
    assert others == list(addresses) or not others


async def test_what_the_owner_advertises_is_what_others_are_told() -> None:
    where = "/ip4/203.0.113.7/tcp/4001"
    async with (
        open_network(identity_of(1), [LOOPBACK], advertise=[where]) as a,
        open_network(identity_of(2), [LOOPBACK]) as b,
    ):
        assert a.addresses() == (f"{where}/p2p/{a.peer}",)
        await a.connect(info_of(b))

        with trio.fail_after(60):
            while (found := await b.find_peer(a.peer)) is None:  # noqa: ASYNC110 - no event
                await trio.sleep(0.05)
        assert found.addresses == (where,)


async def test_a_port_that_another_libp2p_would_share_counts_as_in_use() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(NetworkError, match=f"port {port} is in use .* --listen"):
            async with open_network(identity_of(1), [f"/ip4/127.0.0.1/tcp/{port}"]):
                pass


@pytest.mark.parametrize(
    "listen", ["", "127.0.0.1:4001", "/ip4/127.0.0.1/udp/1", "/ip4/127.0.0.1/tcp/70000"]
)
async def test_a_malformed_listen_address_is_a_usage_error(listen: str) -> None:
    with pytest.raises(UsageError, match="can't listen on"):
        async with open_network(identity_of(1), [listen]):
            pass


async def test_an_address_of_another_machine_is_one_clear_error() -> None:
    with pytest.raises(NetworkError, match="no address of this machine"):
        async with open_network(identity_of(1), ["/ip4/203.0.113.7/tcp/0"]):
            pass


CHURN = """
import logging, sys, trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.base import call
from echo2swarm.network.discovery import Discovery
from echo2swarm.network.libp2p.network import open_network

async def main():
    me, other = (Identity.of(Ed25519PrivateKey.generate()) for _ in range(2))
    async with open_network(me, []) as a:
        async with open_network(other, ["/ip4/127.0.0.1/tcp/0"]) as b:
            (info,) = group_by_peer(b.addresses())
            await a.connect(info)
            with trio.move_on_after(0.001):
                await a.find_peer(other.peer)
            await expect_error(call(a, b.peer, "/no/such", b"", max_reply_bytes=9, timeout_s=60))
        await expect_error(call(a, b.peer, "/no/such", b"", max_reply_bytes=9, timeout_s=60))
        await expect_error(a.connect(info))
    logging.warning("logging still works")

async def expect_error(operation):
    try:
        await operation
    except NetworkError as exc:
        print("NetworkError", "\\n" in str(exc))

import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
trio.run(main)
"""


def test_the_library_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHURN], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout.splitlines() == ["NetworkError False"] * 3
    assert done.stderr.splitlines() == ["WARNING:root:logging still works"]


async def test_a_node_that_knows_only_another_node_finds_the_learner() -> None:
    run, learner_id = RunId("run-1"), identity_of(1)

    def discovery(network: Network, identity: Identity, boot: Sequence[str]) -> Discovery:
        def sealed_advert() -> bytes:
            said = NodeAdvert(
                run_id=run,
                peer_id=network.peer,
                role="node",
                seq=1,
                addresses=network.addresses(),
                name="",
                engine="",
                device="",
                usd_per_hour=0.0,
                software="",
            )
            return advert.sign_advert(said, identity.key)

        return Discovery(
            network,
            run=run,
            learner=learner_id.peer,
            boot=boot,
            sealed_advert=sealed_advert,
            rng=random.Random(network.peer),
            unix_now_s=lambda: 1e9,
        )

    async with (
        open_network(learner_id, [LOOPBACK]) as learner,
        open_network(identity_of(2), [LOOPBACK]) as second,
        open_network(identity_of(3), [LOOPBACK]) as third,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(discovery(learner, learner_id, []).run)
        nursery.start_soon(discovery(second, identity_of(2), learner.addresses()).run)
        with trio.fail_after(120):
            found = await discovery(third, identity_of(3), second.addresses()).find_learner()

        assert found.peer == learner.peer
        assert third.connected_peers() >= {learner.peer, second.peer}
        nursery.cancel_scope.cancel()
