"""Entries of the DHT that send whoever looks for the run to a victim."""

from typing import Final

import trio
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import Wire, new_identity, varint
from echo2swarm.network.discovery import rendezvous_key
from protocols.ids import PeerId

PROTOCOL: Final = "/ipfs/kad/1.0.0"
EVERY_S: Final = 5.0
_MULTIHASH: Final = bytes.fromhex("1220")


async def run(scene: Scene) -> None:
    """Say to learner and nodes that we, and others, provide the run, at the victim's address."""
    key = _MULTIHASH + rendezvous_key(scene.ticket.run)
    targets = (scene.learner, *scene.nodes)

    async def provide(wire: Wire, who: PeerId) -> None:
        message = Message()
        message.type = Message.ADD_PROVIDER
        message.key = key
        provider = message.providerPeers.add()
        provider.id = ID.from_string(who).to_bytes()
        provider.addrs.append(Multiaddr(scene.order.victim).to_bytes())
        data = message.SerializeToString()
        stream = await wire.open_stream(PROTOCOL, varint(len(data)) + data)
        scene.tried()
        with trio.move_on_after(1.0):
            await stream.wait_ended()
        stream.forget()

    async def act(index: int) -> None:
        # Who stays would pass for a neighbour, and nobody would look for others.
        for to in targets:
            identity = new_identity()
            async with scene.connection(index, identity, to=to) as wire:
                await provide(wire, identity.peer)
                await provide(wire, new_identity().peer)
        await trio.sleep(EVERY_S)

    await scene.crowd(act)
