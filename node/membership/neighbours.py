"""The peers the learner tells us to exchange chunks with: connected to in the background.

Each of them is told of us, too, so that whoever can dial does. Connections to peers that
are not named any more are left alone; they are only not asked for chunks.
"""

import random
from typing import Final, NoReturn

import structlog
import trio

from echo2swarm.network.addresses import split_address
from echo2swarm.network.backoff import Backoff
from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import NetworkError
from protocols.errors import MalformedMessageError
from protocols.heartbeat import Dial, PeerAddresses
from protocols.ids import PeerId, short

log = structlog.get_logger()

CONNECT_S: Final = 10.0
MAX_PARALLEL_DIALS: Final = 4
MAX_RETRY_S: Final = 120.0


class Neighbours:
    """Connects to whom the learner names; who does not answer is tried again, ever less often."""

    def __init__(self, network: Network, *, learner: PeerId, rng: random.Random) -> None:
        self._network = network
        self._learner = learner
        self._rng = rng
        self._wanted: dict[PeerId, PeerInfo] = {}
        self._trouble: dict[PeerId, tuple[Backoff, float]] = {}
        self._reached: set[PeerId] = set()
        self._changes = ChangeEvent()

    def holders(self) -> frozenset[PeerId]:
        """Return the peers to ask for chunks: our neighbours that are connected, and the learner.

        While none of them is connected, whoever else is: better a stranger than nobody.
        """
        connected = self._network.connected_peers()
        return (connected & self._wanted.keys() or connected) | {self._learner}

    def is_relied_on(self, peer: PeerId) -> bool:
        """Return whether ``peer`` is the learner, or one whom it names."""
        return peer == self._learner or peer in self._wanted

    @property
    def dials(self) -> dict[PeerId, Dial]:
        """What came of our attempts to dial those who are named now, so far as there were any."""
        return {
            peer: Dial.REACHED if peer in self._reached else Dial.FAILED
            for peer in self._wanted
            if peer in self._reached or peer in self._trouble
        }

    def named(self, neighbours: tuple[PeerAddresses, ...]) -> None:
        """Take in whom the learner names."""
        infos = [_info(each) for each in neighbours if each.peer_id != self._network.peer]
        wanted = {info.peer: info for info in infos}
        if wanted != self._wanted:
            self._wanted = wanted
            self._reached &= wanted.keys()
            self._trouble = {p: t for p, t in self._trouble.items() if p in wanted}
            self._changes.notify()

    async def run(self) -> NoReturn:
        """Connect to them until cancelled."""
        while True:
            change = self._changes.next_change
            now_s = trio.current_time()
            connected = self._network.connected_peers()
            absent = [
                info
                for peer, info in self._wanted.items()
                if peer not in connected and info.addresses
            ]
            due = [info for info in absent if self._retry_at_s(info.peer) <= now_s]
            if due:
                limiter = trio.CapacityLimiter(MAX_PARALLEL_DIALS)
                async with trio.open_nursery() as nursery:
                    for info in due:
                        nursery.start_soon(self._reach, info, limiter)
                continue
            next_s = min(
                [self._retry_at_s(info.peer) for info in absent], default=now_s + CONNECT_S
            )
            with trio.move_on_at(min(next_s, now_s + CONNECT_S)):
                await change.wait()

    def _retry_at_s(self, peer: PeerId) -> float:
        return self._trouble[peer][1] if peer in self._trouble else -1.0

    async def _reach(self, info: PeerInfo, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            try:
                await self._network.connect(info, timeout_s=CONNECT_S, told_by=info.peer)
            except NetworkError as exc:
                self._reached.discard(info.peer)
                backoff, _ = self._trouble.get(info.peer, (None, 0.0))
                backoff = backoff or Backoff(self._rng, first_s=5.0, cap_s=MAX_RETRY_S)
                self._trouble[info.peer] = backoff, trio.current_time() + backoff.next_s()
                log.debug("neighbour.unreachable", peer=short(info.peer), error=str(exc))
            else:
                self._trouble.pop(info.peer, None)
                self._reached.add(info.peer)


def _info(named: PeerAddresses) -> PeerInfo:
    """Return whom to dial; an address may have the peer at its end or not."""
    peer = PeerId(named.peer_id)
    places: list[str] = []
    for address in named.addresses:
        where = address
        if "/p2p/" in address:
            try:
                at_end, where = split_address(address)
            except MalformedMessageError:
                continue
            if at_end != peer:
                continue
        places.append(where)
    return PeerInfo(peer=peer, addresses=tuple(dict.fromkeys(places)))
