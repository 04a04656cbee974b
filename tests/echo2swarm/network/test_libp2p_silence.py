"""A node that was led to many addresses where nobody answers."""

import itertools

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from protocols.ids import peer_id_of
from tests.contracts.network_worlds import Libp2pWorld, info_of
from tests.echo2swarm.network.test_discovery import LEARNER, discovery_of, key_of

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NODE = 2
MAX_CONNECTIONS = 16
NUM_DIALS = 200
"""Many times the connections that the node may have at once."""


async def dial_silence(network: Network, where: str) -> None:
    with_nobody = trio.CapacityLimiter(2)

    async def dial() -> None:
        async with with_nobody:
            peer = peer_id_of(Ed25519PrivateKey.generate().public_key())
            try:
                await network.connect(PeerInfo(peer=peer, addresses=(where,)), timeout_s=0.1)
            except NetworkError:
                return
            raise AssertionError("silence answered")

    async with trio.open_nursery() as nursery:
        for _ in range(NUM_DIALS):
            nursery.start_soon(dial)


async def test_a_node_that_was_led_to_silent_addresses_finds_a_learner_that_restarts() -> None:
    async with (
        Libp2pWorld().silence() as silent,
        open_network(
            Identity.of(key_of(NODE)), [LOOPBACK], max_connections=MAX_CONNECTIONS
        ) as node,
        trio.open_nursery() as nursery,
    ):
        async with open_network(Identity.of(key_of(LEARNER)), [LOOPBACK]) as learner:
            (address,) = info_of(learner).addresses
            discovery = discovery_of(node, NODE, *learner.addresses())
            nursery.start_soon(discovery.run)
            with trio.fail_after(60):
                await discovery.find_learner()
            await dial_silence(node, silent)

        async with (
            open_network(Identity.of(key_of(LEARNER)), [address]) as learner,
            open_network(Identity.of(key_of(3)), [LOOPBACK]) as other,
        ):
            with trio.fail_after(90):
                while learner.peer not in node.connected_peers():  # noqa: ASYNC110 - polled
                    await trio.sleep(0.1)
            for attempt in itertools.count():
                try:
                    await other.connect(info_of(node))
                    break
                except NetworkError:
                    if attempt == 3:
                        raise
            nursery.cancel_scope.cancel()
