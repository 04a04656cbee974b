"""What the library does to GossipSub by itself, and must not."""

from collections.abc import Sequence

import pytest
import trio
from libp2p import new_host
from libp2p.abc import INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.pubsub.pb import rpc_pb2

from echo2swarm.network.libp2p.adapter import Libp2pNetwork
from echo2swarm.network.libp2p.gossip import MAX_REMEMBERED, Gossip
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.system.identity import Identity
from protocols.gossip import Validation
from protocols.ids import PeerId
from tests.contracts.network_worlds import eventually, info_of, key_of

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
TOPIC = "echo2/test"


def new_gossip() -> Gossip:
    return Gossip(new_host(create_new_key_pair(bytes(32))))


def message(number: int, data: bytes = b"") -> rpc_pb2.Message:
    return rpc_pb2.Message(from_id=b"sender", seqno=number.to_bytes(8, "big"), data=data)


def test_the_heartbeat_keeps_its_interval_however_few_neighbours_there_are() -> None:
    router = new_gossip().router
    for health in (0.0, 0.5, 1.0):
        router.network_health_score = health
        router._adapt_gossip_parameters()
        assert router.heartbeat_interval == 1


def test_only_the_newest_messages_are_kept_to_tell_a_sender_that_contradicts_itself() -> None:
    router = new_gossip().router
    num_messages = 3 * MAX_REMEMBERED
    for number in range(num_messages):
        assert router._check_equivocation(message(number))
    assert len(router.equivocation_detection) == MAX_REMEMBERED
    newest, oldest_kept = num_messages - 1, num_messages - MAX_REMEMBERED
    for number in (newest, oldest_kept):
        assert not router._check_equivocation(message(number, b"other"))
    assert router._check_equivocation(message(oldest_kept - 1, b"other"))


def accept(_author: PeerId, _data: bytes) -> Validation:
    return Validation.ACCEPT


async def test_a_neighbour_learns_of_a_topic_that_is_joined_while_its_stream_is_being_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        open_network(Identity.of(key_of(1)), [LOOPBACK]) as source,
        open_network(Identity.of(key_of(2)), [LOOPBACK]) as late,
        trio.open_nursery() as nursery,
    ):
        assert isinstance(source, Libp2pNetwork)
        assert isinstance(late, Libp2pNetwork)
        host = late._gossip.pubsub.host
        new_stream = host.new_stream
        has_begun, has_joined = trio.Event(), trio.Event()

        async def slowly(peer: object, protocols: Sequence[str]) -> INetStream:
            stream = await new_stream(peer, protocols)
            if any("meshsub" in protocol for protocol in protocols):
                write = stream.write

                async def write_late(data: bytes) -> None:
                    has_begun.set()
                    await has_joined.wait()
                    await write(data)

                monkeypatch.setattr(stream, "write", write_late)
            return stream

        monkeypatch.setattr(host, "new_stream", slowly)
        nursery.start_soon(source.connect, info_of(late))
        await has_begun.wait()
        async with late.subscribe(TOPIC, accept):
            has_joined.set()

            async def is_known() -> bool:
                topics = source._gossip.pubsub.peer_topics
                return any(str(peer) == late.peer for peer in topics.get(TOPIC, ()))

            await eventually(is_known)
