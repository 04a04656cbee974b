"""What the library does to GossipSub by itself, and must not."""

from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.pubsub.pb import rpc_pb2

from echo2swarm.network.libp2p.gossip import MAX_REMEMBERED, Gossip


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
