"""Whom a participant connects to when peers tell it where to: over real sockets."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from echo2swarm.network.base import PeerInfo
from echo2swarm.network.libp2p.adapter import Libp2pNetwork
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.rpc import serve_calls
from echo2swarm.system.errors import NetworkError
from protocols.bulk import (
    PROTOCOL_ID,
    BulkRefused,
    CallBack,
    Called,
    DialInvitation,
    DialRequest,
    DialTarget,
    Obstacle,
)
from protocols.codec import encode
from tests.contracts.network_worlds import eventually
from tests.echo2swarm.network.bulk.test_channel import ECHO, ask, serve_echo
from tests.echo2swarm.network.libp2p.test_network import LOOPBACK, identity_of, info_of

PUBLIC = "/ip4/8.8.4.4/tcp/4150"
"""Of a learner in the open: this machine's own networks are none of its run's."""
STRANGER = identity_of(9).peer


@dataclass
class Victim:
    """A service of somebody who has nothing to do with any run; it says nothing."""

    address: str
    port: int
    num_connections: int = 0


@asynccontextmanager
async def victim(host: str = "127.0.0.1") -> AsyncIterator[Victim]:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=host)
        port = listener.socket.getsockname()[1]
        found = Victim(f"/ip4/{host}/tcp/{port}", port)

        async def count(_stream: trio.SocketStream) -> None:
            found.num_connections += 1
            await trio.sleep_forever()

        nursery.start_soon(trio.serve_listeners, count, [listener])
        yield found
        nursery.cancel_scope.cancel()


async def settled() -> None:
    """Let every dial end that was begun."""
    await trio.sleep(0.5)


def entrance(*addresses: str) -> DialTarget:
    return DialTarget(bytes(32), bytes(32), addresses)


@pytest.mark.parametrize("told_by", [STRANGER, "the DHT"])
async def test_an_address_in_a_network_that_the_run_is_not_in_is_not_dialled(told_by: str) -> None:
    async with (
        victim() as service,
        open_network(identity_of(1), [LOOPBACK], ticket_addresses=[PUBLIC]) as node,
    ):
        with pytest.raises(NetworkError, match="not dialled: a loopback address"):
            await node.connect(
                PeerInfo(peer=STRANGER, addresses=(service.address,)), told_by=told_by
            )
        await settled()

        assert service.num_connections == 0


async def test_what_a_ticket_names_is_dialled_by_name_too_whatever_network_it_is_in() -> None:
    async with (
        open_network(identity_of(1), [LOOPBACK]) as learner,
        open_network(identity_of(2), [], ticket_addresses=["/dns4/x.invalid/tcp/1"]) as node,
    ):
        (address,) = info_of(learner).addresses
        named = address.replace("/ip4/127.0.0.1/", "/dns4/localhost/")
        await node.connect(PeerInfo(peer=learner.peer, addresses=(named,)))

        assert node.connected_peers() == {learner.peer}
        # So the run is on this machine, and others of it may be, too.
        with pytest.raises(NetworkError, match="refused"):
            await node.connect(
                PeerInfo(peer=STRANGER, addresses=("/ip4/127.0.0.1/tcp/2000",)), told_by=STRANGER
            )


async def test_many_identities_at_one_address_have_it_dialled_a_few_times() -> None:
    async with victim() as service, open_network(identity_of(1), [LOOPBACK]) as node:
        for number in range(10, 70):
            peer = identity_of(number).peer
            with pytest.raises(NetworkError):
                await node.connect(
                    PeerInfo(peer=peer, addresses=(service.address,)), timeout_s=0.1, told_by=peer
                )
        await settled()

        assert service.num_connections <= 3


async def test_the_librarys_own_dials_pass_the_same_gate() -> None:
    async with (
        victim() as service,
        open_network(identity_of(1), [LOOPBACK], ticket_addresses=[PUBLIC]) as node,
    ):
        assert isinstance(node, Libp2pNetwork)
        host = node._host
        target = ID.from_string(STRANGER)
        host.get_peerstore().add_addrs(target, [Multiaddr(service.address)], 3600)
        with pytest.raises(SwarmException):
            await host.get_network().dial_peer(target)
        with pytest.raises(SwarmException):
            await host.get_network().dial_addr(Multiaddr(service.address), target)
        await settled()

        assert service.num_connections == 0


async def test_who_asks_to_be_called_back_is_called_where_it_is_and_nowhere_else() -> None:
    async with (
        victim("127.0.0.2") as elsewhere,
        victim() as here,
        open_network(identity_of(1), [LOOPBACK]) as learner,
        open_network(identity_of(2), []) as asker,
    ):
        serve_echo(learner)
        await asker.connect(info_of(learner))
        for address in (elsewhere.address, f"/dns4/localhost/tcp/{elsewhere.port}"):
            assert await ask(asker, learner, CallBack(ECHO, entrance(address))) == Called()
        await ask(asker, learner, CallBack(ECHO, entrance(f"/ip4/127.0.0.2/tcp/{here.port}")))
        await settled()

        assert elsewhere.num_connections == 0
        assert here.num_connections == 1


@pytest.mark.parametrize("addresses", [(), ("/ip4/127.0.0.1/tcp/80",), ("/ip4/127.0.0.1/udp/99",)])
async def test_where_nothing_may_be_dialled_it_is_said_at_once(addresses: Sequence[str]) -> None:
    async with (
        open_network(identity_of(1), [LOOPBACK]) as learner,
        open_network(identity_of(2), []) as asker,
    ):
        serve_echo(learner)
        await asker.connect(info_of(learner))

        reply = await ask(asker, learner, CallBack(ECHO, entrance(*addresses)))
        assert reply == BulkRefused(Obstacle.UNREACHABLE)


async def test_neither_the_answer_nor_its_time_tells_what_is_at_a_port() -> None:
    async with (
        victim() as silent,
        open_network(identity_of(1), [LOOPBACK]) as learner,
        open_network(identity_of(2), []) as asker,
    ):
        serve_echo(learner)
        await asker.connect(info_of(learner))
        closed = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        port = closed.socket.getsockname()[1]
        await closed.aclose()

        replies = [
            await ask(asker, learner, CallBack(ECHO, entrance(f"/ip4/127.0.0.1/tcp/{each}")))
            for each in (silent.port, port)
        ]
        # Both were answered while the dial of the silent one still goes on.
        assert replies == [Called(), Called()]
        await settled()
        assert silent.num_connections == 1
        # What is known of a port by now does not show either.
        again = CallBack(ECHO, entrance(f"/ip4/127.0.0.1/tcp/{port}"))
        assert await ask(asker, learner, again) == Called()


async def test_calls_back_to_one_peer_are_few_at_once() -> None:
    async with (
        open_network(identity_of(1), [LOOPBACK]) as learner,
        open_network(identity_of(2), []) as asker,
    ):
        serve_echo(learner)
        await asker.connect(info_of(learner))
        replies = [
            await ask(asker, learner, CallBack(ECHO, entrance(f"/ip4/127.0.0.1/tcp/{port}")))
            for port in range(2001, 2021)
        ]

        assert replies.count(Called()) == 4
        assert replies.count(BulkRefused(Obstacle.BUSY)) == 16


async def test_an_entrance_leads_only_to_the_host_that_offers_it() -> None:
    async with (
        victim("127.0.0.2") as elsewhere,
        open_network(identity_of(1), [LOOPBACK], has_bulk=False) as liar,
        open_network(identity_of(2), [LOOPBACK]) as node,
    ):
        serve_echo(liar)

        async def lie(_peer: object, _request: bytes) -> bytes:
            return encode(DialInvitation(entrance(elsewhere.address)), max_bytes=8192)

        serve_calls(
            liar, PROTOCOL_ID, lie, max_request_bytes=8192, max_reply_bytes=8192, timeout_s=60
        )
        await node.connect(info_of(liar))
        assert isinstance(await ask(node, liar, DialRequest(ECHO)), DialInvitation)
        async with node.open_stream(liar.peer, ECHO, max_frame_bytes=1000, bulk=True) as stream:
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"
        await settled()

        assert elsewhere.num_connections == 0


async def tell_dht(liar: Libp2pNetwork, to: Libp2pNetwork, key: bytes, where: str) -> None:
    """Say that ``liar`` belongs to ``key`` and is at ``where``, as another implementation might."""
    message = Message()
    message.type = Message.ADD_PROVIDER
    message.key = bytes.fromhex("1220") + key
    provider = message.providerPeers.add()
    provider.id = ID.from_string(liar.peer).to_bytes()
    provider.addrs.append(Multiaddr(where).to_bytes())
    body = message.SerializeToString()
    connection = await liar._peers.get(to.peer, bulk=False)
    stream = await liar._negotiate(connection, to.peer, "/ipfs/kad/1.0.0")
    await stream.write(encode_uvarint(len(body)) + body)
    await stream.close()


async def test_nobody_enters_the_address_of_another_into_the_dht() -> None:
    key = bytes(range(32))
    async with (
        victim("127.0.0.2") as service,
        open_network(identity_of(1), [LOOPBACK]) as keeper,
        open_network(identity_of(2), [LOOPBACK]) as liar,
        open_network(identity_of(3), [LOOPBACK]) as seeker,
    ):
        assert isinstance(keeper, Libp2pNetwork)
        assert isinstance(liar, Libp2pNetwork)
        await liar.connect(info_of(keeper))
        await seeker.connect(info_of(keeper))
        await tell_dht(liar, keeper, key, service.address)

        async def is_told() -> bool:
            return liar.peer in {info.peer for info in await seeker.find_providers(key)}

        await eventually(is_told)
        told = {i.peer: i.addresses for i in await seeker.find_providers(key)}
        assert service.address not in told[liar.peer]


async def test_a_meeting_at_a_place_in_a_network_that_the_run_is_not_in_is_not_kept() -> None:
    async with open_network(
        identity_of(1), [LOOPBACK], ticket_addresses=[PUBLIC], go_betweens=[STRANGER]
    ) as node:
        assert isinstance(node, Libp2pNetwork)
        meetings = node._peers.meetings
        assert meetings is not None
        with pytest.raises(NetworkError, match="no place to meet"):
            meetings._admitted(["/ip4/127.0.0.1/tcp/5000", "/ip4/10.0.0.1/tcp/5000"], STRANGER)

        assert meetings._admitted(["/ip4/127.0.0.1/tcp/5000", "/ip4/9.9.9.9/tcp/5000"], STRANGER)
