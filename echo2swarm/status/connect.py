"""A client of the status protocol that joins the network for as long as it asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.libp2p.network import open_network
from echo2swarm.status.client import StatusClient
from echo2swarm.system.identity import Identity
from protocols.ticket import Ticket


@asynccontextmanager
async def open_client(ticket: Ticket) -> AsyncIterator[StatusClient]:
    """Yield a client with an identity of its own, which ends with the context."""
    identity = Identity.of(Ed25519PrivateKey.generate())
    async with open_network(identity, listen=()) as network:
        yield StatusClient(network, ticket)
