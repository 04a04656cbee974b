"""The network port without a network: a whole swarm in one process, for tests and simulation.

Latency, loss and partitions are seeded and run on trio's clock, so that with a
virtual one a minute of swarm life takes milliseconds. What is faithful to the
libp2p adapter: authenticated peers, addresses that may be dead, streams that
break when a peer goes, gossip that travels hop by hop past each validator, and
a DHT that knows only what can be reached over live connections.

What is not: a partition or a death breaks streams and connections at once,
where libp2p takes some seconds to notice.
"""

import itertools
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.system.errors import NetworkError
from protocols.ids import PeerId, peer_id_of, short
from tests.fakes.network.memory_node import MemoryNetwork
from tests.fakes.network.memory_stream import Weather

PORT: Final = 4001
"""All have the same port, and a host number each."""
MAX_CONNECTIONS: Final = 512


async def _open_nursery(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


class MemoryHub:
    """The world that the in-memory networks live in."""

    def __init__(
        self, seed: int, *, latency_s: tuple[float, float] = (0.01, 0.05), loss: float = 0.0
    ) -> None:
        """Make an empty world.

        Args:
            seed: of every random choice of the world.
            latency_s: least and greatest one-way delay of a frame.
            loss: share of frames lost on their way. A stream sends them again, which
                takes time; gossip does not.
        """
        self.weather = Weather(random.Random(seed), latency_s, loss)
        self._alive: dict[PeerId, MemoryNetwork] = {}
        self._links: set[frozenset[PeerId]] = set()
        self._groups: tuple[frozenset[PeerId], ...] = ()
        self._hosts = itertools.count(1)

    @asynccontextmanager
    async def network(
        self,
        key: Ed25519PrivateKey,
        *,
        address: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> AsyncIterator[MemoryNetwork]:
        """Join the world under the peer id of ``key``; leave it with the context.

        Args:
            key: the identity; one that left may come back.
            address: where to be dialled; by default a new one each time.
            max_connections: in both directions together.

        Raises:
            NetworkError: the peer id or the address is in use.
        """
        peer = peer_id_of(key.public_key())
        where = address or f"/ip4/10.0.{next(self._hosts)}.1/tcp/{PORT}"
        if peer in self._alive:
            raise NetworkError(f"peer {short(peer)} is running already")
        if self.at(where) is not None:
            raise NetworkError(f"address {where} is in use")
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            # The tasks of a network can be ended, by kill, without its user's.
            tasks = await nursery.start(_open_nursery)
            network = MemoryNetwork(self, peer, where, tasks, max_connections=max_connections)
            self._alive[peer] = network
            try:
                yield network
            except (Exception, KeyboardInterrupt) as exc:
                failure = exc  # The caller's own: raised as it came, not in a group.
            finally:
                self.kill(peer, network)
        if failure is not None:
            raise failure

    def partition(self, *groups: Collection[PeerId]) -> None:
        """Let only members of the same group reach each other; the others form one more group."""
        self._groups = tuple(frozenset(group) for group in groups)
        for link in list(self._links):
            if not self.can_reach(*link):
                self.unlink(*link)

    def heal(self) -> None:
        """End the partition. Connections that it broke have to be made again."""
        self._groups = ()

    def kill(self, peer: PeerId, network: MemoryNetwork | None = None) -> None:
        """End a peer as ``kill -9`` would: its streams break, its handlers stop.

        Whatever still uses its network gets :class:`~echo2swarm.system.errors.NetworkError`.

        Args:
            peer: whom; nothing happens if it is not running.
            network: kill only this incarnation of it.
        """
        victim = self._alive.get(peer)
        if victim is None or network not in (None, victim):
            return
        del self._alive[peer]
        for link in [link for link in self._links if peer in link]:
            self.unlink(*link)
        victim.die()

    # What the networks of this world ask of it:

    def at(self, where: str) -> MemoryNetwork | None:
        """Return who listens at an address."""
        return next((n for n in self._alive.values() if n.where == where), None)

    def alive(self, peer: PeerId) -> MemoryNetwork | None:
        """Return a running peer."""
        return self._alive.get(peer)

    def can_reach(self, one: PeerId, other: PeerId) -> bool:
        """Return whether no partition lies between two peers."""
        return self._group_of(one) == self._group_of(other)

    def link(self, one: PeerId, other: PeerId) -> None:
        """Connect two peers; whichever of them has too many connections then breaks one."""
        self._links.add(frozenset((one, other)))
        for peer, rest, is_dialled in ((one, other, True), (other, one, False)):
            if (victim := self._alive[peer].linked(rest, is_dialled=is_dialled)) is not None:
                self.unlink(peer, victim)

    def unlink(self, one: PeerId, other: PeerId) -> None:
        """Break the connection of two peers and every stream on it."""
        self._links.discard(frozenset((one, other)))
        for peer, rest in ((one, other), (other, one)):
            network = self._alive.get(peer)
            if network is not None:
                network.unlinked(rest)

    def linked(self, peer: PeerId) -> frozenset[PeerId]:
        """Return the peers connected to ``peer``."""
        return frozenset(p for link in self._links if peer in link for p in link if p != peer)

    def component(self, peer: PeerId) -> frozenset[PeerId]:
        """Return everybody whom ``peer`` can reach from neighbour to neighbour, itself included."""
        found, frontier = {peer}, [peer]
        while frontier:
            new = self.linked(frontier.pop()) - found
            found |= new
            frontier.extend(new)
        return frozenset(found)

    def _group_of(self, peer: PeerId) -> int:
        return next((i for i, group in enumerate(self._groups) if peer in group), -1)
