"""Forged manifests by gossip: as long as gossip carries, signed by anybody."""

import itertools
import secrets
from typing import Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import PUBSUB_SIGNING_PREFIX

from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import new_identity, varint
from echo2swarm.system.identity import Identity
from protocols.manifest import topic_of

PROTOCOL: Final = "/meshsub/1.1.0"
NUM_BYTES: Final = 300_000


async def run(scene: Scene) -> None:
    """Publish at the given pace, to the learner and to the nodes."""
    topic = topic_of(scene.ticket.run)
    targets = (scene.learner, *scene.nodes)
    numbers = itertools.count(1)

    async def act(index: int) -> None:
        identity = new_identity()
        async with scene.connection(index, identity, to=targets[index % len(targets)]) as wire:
            hello = rpc_pb2.RPC()
            hello.subscriptions.add(subscribe=True, topicid=topic)
            stream = await wire.open_stream(PROTOCOL, _delimited(hello))
            await trio.sleep(0.5)
            while not wire.is_closed and not stream.has_ended:
                await scene.turn()
                await stream.send(_delimited(forged(identity, topic, next(numbers))))
                scene.notes["kB"] += NUM_BYTES // 1000

    await scene.crowd(act)


def forged(identity: Identity, topic: str, number: int) -> rpc_pb2.RPC:
    """Return one message, correctly signed by who sends it, that holds no manifest."""
    key_pair = create_new_key_pair(identity.key.private_bytes_raw())
    message = rpc_pb2.Message(
        data=secrets.token_bytes(NUM_BYTES),
        topicIDs=[topic],
        from_id=ID.from_string(identity.peer).to_bytes(),
        seqno=number.to_bytes(8, "big"),
    )
    message.signature = key_pair.private_key.sign(
        PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString()
    )
    message.key = key_pair.public_key.serialize()
    return rpc_pb2.RPC(publish=[message])


def _delimited(rpc: rpc_pb2.RPC) -> bytes:
    data: bytes = rpc.SerializeToString()
    return varint(len(data)) + data
