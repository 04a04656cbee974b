"""Peers that listen nowhere connect to each other with the help of one that does."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.base import Network, PeerInfo, ServeLimits, Stream
from echo2swarm.network.libp2p import holepunch, holepunch_coordinator
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.rpc import call, serve_calls
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from protocols.codec import decode, encode
from protocols.holepunch import (
    ASK_PROTOCOL_ID,
    INVITE_PROTOCOL_ID,
    MAX_BYTES,
    AskReply,
    InviteReply,
    PunchAccept,
    PunchDeclined,
    PunchFault,
    PunchGo,
    PunchInvite,
    PunchRequest,
    TcpEndpoint,
)
from protocols.ids import PeerId
from tests.contracts.network_worlds import eventually

ECHO = "/test/echo/1.0.0"
FRAME_BYTES = 200_000


def identity_of(number: int) -> Identity:
    return Identity.of(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


GO_BETWEEN = identity_of(1).peer
STRANGER = identity_of(9).peer
DEAD = TcpEndpoint("127.0.0.1", 1024)


@asynccontextmanager
async def go_between(*, is_willing: bool = True) -> AsyncIterator[Network]:
    async with open_network(
        identity_of(1), ["/ip4/127.0.0.1/tcp/0"], is_go_between=is_willing
    ) as network:
        yield network


@asynccontextmanager
async def hidden(
    number: int, friend: Network, *, trusts: Collection[PeerId] = (GO_BETWEEN,)
) -> AsyncIterator[Network]:
    """A peer that nobody can dial, connected to ``friend``."""
    async with open_network(identity_of(number), [], go_betweens=trusts) as network:

        async def echo(_peer: PeerId, request: bytes) -> bytes:
            return request

        serve_calls(
            network,
            ECHO,
            echo,
            max_request_bytes=FRAME_BYTES,
            max_reply_bytes=FRAME_BYTES,
            timeout_s=60,
        )
        (info,) = group_by_peer(friend.addresses())
        await network.connect(info)
        yield network


def nowhere(network: Network) -> PeerInfo:
    return PeerInfo(peer=network.peer, addresses=())


async def echoed(caller: Network, callee: Network, data: bytes) -> bytes:
    return await call(caller, callee.peer, ECHO, data, max_reply_bytes=FRAME_BYTES, timeout_s=60)


async def test_two_hidden_peers_meet_and_talk_both_ways() -> None:
    async with go_between() as r, hidden(2, r) as a, hidden(3, r) as b:
        await a.connect(nowhere(b))

        assert b.peer in a.connected_peers()
        assert await echoed(a, b, b"x" * 100_000) == b"x" * 100_000
        assert await echoed(b, a, b"y" * 100_000) == b"y" * 100_000


async def test_what_they_say_does_not_pass_through_the_go_between() -> None:
    async with go_between() as r, hidden(2, r) as a, hidden(3, r) as b:
        await a.connect(nowhere(b))
        await r.disconnect(a.peer)
        await r.disconnect(b.peer)

        assert await echoed(a, b, b"still here") == b"still here"


async def test_bulk_goes_the_same_way() -> None:
    async with go_between() as r, hidden(2, r) as a, hidden(3, r) as b:
        await a.connect(nowhere(b))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=FRAME_BYTES, bulk=True) as stream:
            with trio.fail_after(60):
                await stream.send(b"z" * 150_000)
                assert await stream.receive() == b"z" * 150_000


async def test_two_who_ask_for_each_other_at_once_both_get_there() -> None:
    async with go_between() as r, hidden(2, r) as a, hidden(3, r) as b:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.connect, nowhere(b))
            nursery.start_soon(b.connect, nowhere(a))

        assert await echoed(a, b, b"1") == b"1"
        assert await echoed(b, a, b"2") == b"2"


async def test_four_at_once_all_meet_each_other() -> None:
    async with (
        go_between() as r,
        hidden(2, r) as a,
        hidden(3, r) as b,
        hidden(4, r) as c,
        hidden(5, r) as d,
    ):
        peers = (a, b, c, d)
        async with trio.open_nursery() as nursery:
            for one in peers:
                for other in peers:
                    if one.peer < other.peer:
                        nursery.start_soon(one.connect, nowhere(other))

        async def all_see_each_other() -> bool:
            everybody = {one.peer for one in peers}
            return all(one.connected_peers() >= everybody - {one.peer} for one in peers)

        await eventually(all_see_each_other)


async def test_a_stream_to_a_hidden_peer_needs_no_connect() -> None:
    async with go_between() as r, hidden(2, r) as a, hidden(3, r) as b:
        assert await echoed(a, b, b"hello") == b"hello"


async def test_who_can_be_dialled_is_dialled() -> None:
    async with (
        go_between(is_willing=False) as r,
        hidden(2, r) as a,
        open_network(identity_of(3), ["/ip4/127.0.0.1/tcp/0"]) as b,
    ):
        (info,) = group_by_peer(b.addresses())
        await a.connect(info)

        assert b.peer in a.connected_peers()


async def test_a_peer_unknown_to_the_go_between_can_come_later() -> None:
    async with go_between() as r, hidden(2, r) as a:
        absent = PeerInfo(peer=identity_of(3).peer, addresses=())
        with pytest.raises(NetworkError, match="not_here"):
            await a.connect(absent)
        async with hidden(3, r):
            await a.connect(absent)


async def test_an_unwilling_go_between_is_an_error_of_the_network() -> None:
    async with go_between(is_willing=False) as r, hidden(2, r) as a, hidden(3, r) as b:
        with pytest.raises(NetworkError, match="opens no stream"):
            await a.connect(nowhere(b))


async def test_nobody_follows_the_word_of_a_go_between_it_does_not_trust() -> None:
    async with (
        go_between() as r,
        hidden(2, r) as a,
        hidden(3, r, trusts=[identity_of(9).peer]) as b,
    ):
        with pytest.raises(NetworkError, match="unable"):
            await a.connect(nowhere(b))


async def test_a_peer_that_can_not_be_met_is_not_asked_for_again_at_once() -> None:
    async with (
        go_between() as r,
        hidden(2, r) as a,
        hidden(3, r, trusts=[identity_of(9).peer]) as b,
    ):
        with pytest.raises(NetworkError, match="unable"):
            await a.connect(nowhere(b))
        with pytest.raises(NetworkError, match="no address known") as caught:
            await a.connect(nowhere(b))
        assert "unable" not in str(caught.value)


async def test_who_asks_too_often_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holepunch_coordinator, "BURST", 2)
    async with go_between() as r, hidden(2, r) as a:
        ask = encode(PunchRequest(identity_of(7).peer, 5000), max_bytes=MAX_BYTES)

        async def fault() -> PunchFault:
            data = await call(
                a, r.peer, ASK_PROTOCOL_ID, ask, max_reply_bytes=MAX_BYTES, timeout_s=60
            )
            reply: AskReply = decode(data, AskReply, max_bytes=MAX_BYTES)
            assert isinstance(reply, PunchDeclined)
            return reply.fault

        assert [await fault() for _ in range(3)] == [
            PunchFault.NOT_HERE,
            PunchFault.NOT_HERE,
            PunchFault.BUSY,
        ]


async def test_a_go_between_survives_nonsense() -> None:
    async with go_between() as r, hidden(2, r) as a, hidden(3, r) as b:
        for request in (
            b"",
            b"\xff" * 100,
            encode(PunchRequest("not a peer", 5000), max_bytes=MAX_BYTES),
            encode(PunchRequest(a.peer, 5000), max_bytes=MAX_BYTES),
        ):
            with pytest.raises(NetworkError):
                await call(a, r.peer, ASK_PROTOCOL_ID, request, max_reply_bytes=99, timeout_s=60)

        await a.connect(nowhere(b))


Play = Callable[[Stream], Awaitable[None]]


@asynccontextmanager
async def impostor(play: Play) -> AsyncIterator[Network]:
    """A go-between with other manners."""
    limits = ServeLimits(max_frame_bytes=MAX_BYTES)
    async with go_between(is_willing=False) as network:
        network.serve(ASK_PROTOCOL_ID, play, limits)
        yield network


async def test_a_go_between_that_names_forbidden_places_is_not_obeyed() -> None:
    async def mislead(stream: Stream) -> None:
        await stream.receive()
        await stream.send(encode(PunchGo(("/ip4/127.0.0.1/tcp/22",)), max_bytes=MAX_BYTES))

    async with impostor(mislead) as r, hidden(2, r) as a:
        with pytest.raises(NetworkError, match="no place to meet"):
            await a.connect(PeerInfo(peer=identity_of(3).peer, addresses=()))


async def test_who_answers_at_the_place_must_be_the_one_we_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holepunch, "UPGRADE_S", 0.5)
    async with hidden_stranger() as place:

        async def mislead(stream: Stream) -> None:
            await stream.receive()
            await stream.send(encode(PunchGo((place,)), max_bytes=MAX_BYTES))

        async with impostor(mislead) as r, hidden(2, r) as a:
            absent = PeerInfo(peer=identity_of(3).peer, addresses=())
            with pytest.raises(NetworkError, match="no way through"):
                await a.connect(absent, timeout_s=4)
            assert a.connected_peers() == {r.peer}


@asynccontextmanager
async def hidden_stranger() -> AsyncIterator[str]:
    async with open_network(identity_of(8), ["/ip4/127.0.0.1/tcp/0"]) as stranger:
        yield stranger.addresses()[0].partition("/p2p/")[0]


async def test_a_silent_go_between_costs_the_time_that_was_given_and_no_more() -> None:
    async def sleep(stream: Stream) -> None:
        await trio.sleep(30)

    async with impostor(sleep) as r, hidden(2, r) as a:
        with trio.fail_after(60), pytest.raises(NetworkError):
            await a.connect(PeerInfo(peer=identity_of(3).peer, addresses=()), timeout_s=1)


async def test_an_invitation_that_comes_to_nothing_leaves_the_invited_free() -> None:
    async def invite(network: Network, to: PeerId) -> InviteReply:
        async with network.open_stream(to, INVITE_PROTOCOL_ID, max_frame_bytes=MAX_BYTES) as stream:
            await stream.send(encode(PunchInvite(identity_of(7).peer), max_bytes=MAX_BYTES))
            reply: InviteReply = decode(await stream.receive(), InviteReply, max_bytes=MAX_BYTES)
            return reply

    async with go_between() as r, hidden(2, r) as a, hidden(3, r) as b:
        for _ in range(2 * holepunch.MAX_MEETINGS):
            # The stream ends before the word to go: the invited gives up.
            assert isinstance(await invite(r, b.peer), PunchAccept | PunchDeclined)
        with trio.fail_after(60):
            while not isinstance(await invite(r, b.peer), PunchAccept):  # noqa: ASYNC110
                await trio.sleep(0.1)

        await a.connect(nowhere(b))


async def test_closing_amid_a_meeting_leaves_nothing() -> None:
    is_sent = trio.Event()

    async def mislead(stream: Stream) -> None:
        await stream.receive()
        await stream.send(encode(PunchGo((str(DEAD),)), max_bytes=MAX_BYTES))
        is_sent.set()

    async def connect() -> None:
        with pytest.raises(NetworkError):
            await a.connect(PeerInfo(peer=identity_of(3).peer, addresses=()))

    with trio.fail_after(60):
        async with impostor(mislead) as r, trio.open_nursery() as nursery:
            async with hidden(2, r) as a:
                nursery.start_soon(connect)
                await is_sent.wait()
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
