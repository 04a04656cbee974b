"""How participants of one run find each other, knowing one of them.

Everybody *provides* the run's key in the DHT and stores an advert there. So who
reaches any participant finds all the others, and the learner by its peer id,
which follows from the key in the ticket. Where to start is in the ticket and in
the address book of the last start; who can't be reached is tried again and
again, at growing intervals, and complained about once.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import structlog
import trio

from echo2swarm.network import address_book
from echo2swarm.network.addresses import group_by_peer, merge_addresses
from echo2swarm.network.admission.dial_policy import target_of
from echo2swarm.network.backoff import Backoff
from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.system.errors import NetworkError, StoreError
from protocols import advert
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId, RunId, short

CONNECT_S: Final = 10.0
MAX_PARALLEL_DIALS: Final = 4
MAX_REMEMBERED_TRIED: Final = 16
MAX_FAILED_PER_HOST: Final = 2
"""In one round of looking around."""
NUM_NEIGHBOURS: Final = 4
"""So many connections beside the learner's keep a participant in the DHT and the gossip mesh."""
LOOK_AROUND_S: Final = 30.0
ANNOUNCE_S: Final = (0.0, 5.0, 20.0, 60.0)
"""The first announcements come quickly: they reach only who is known so far."""
REANNOUNCE_S: Final = 600.0

_BOOK: Final = "the last start"
_DHT: Final = "the DHT"
"""Who told of an address, where no peer can be named for it."""

MAX_REASONS_TOLD: Final = 3
"""Why one peer is not reached, until it is."""

_log = structlog.get_logger()


def rendezvous_key(run: RunId) -> bytes:
    """Return the DHT key that every participant of ``run`` provides."""
    return hashlib.sha256(b"echo2/run/" + run.encode()).digest()


class Discovery:
    """Finds the learner and some neighbours, and keeps us findable.

    Args:
        network: our place in the network.
        run: which run.
        learner: its learner; may be ourselves.
        boot: addresses from the ticket, of the learner or of any node.
        sealed_advert: makes our advert, anew for each announcement.
        rng: for jitter and for the choice of neighbours.
        unix_now_s: the wall clock, for the address book.
        book_path: where addresses are remembered; None remembers nothing.
    """

    def __init__(
        self,
        network: Network,
        *,
        run: RunId,
        learner: PeerId,
        boot: Sequence[str],
        sealed_advert: Callable[[], bytes],
        rng: random.Random,
        unix_now_s: Callable[[], float],
        book_path: Path | None = None,
    ) -> None:
        self._network = network
        self._run = run
        self._learner = learner
        self._boot = tuple(info for info in group_by_peer(boot) if info.peer != network.peer)
        self._sealed_advert = sealed_advert
        self._rng = rng
        self._unix_now_s = unix_now_s
        self._book_path = book_path
        self._book = address_book.AddressBook(run)
        if book_path is not None:
            self._book = address_book.load_address_book(book_path, run)
        self._unreachable: dict[PeerId, set[str]] = {}
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why the learner could not be reached the last time; empty if it could."""
        return self._trouble

    async def find_learner(self) -> PeerInfo:
        """Return the learner once we are connected to it; tries until then.

        Progress and trouble go to the log, the latter once per peer.
        """
        if self._learner == self._network.peer:
            return PeerInfo(peer=self._learner, addresses=())
        backoff = Backoff(self._rng)
        while True:
            await self._enter()
            found = await self._reach_learner()
            if found is not None:
                _log.info("learner.found", peer=found.peer, addresses=found.addresses)
                await trio.to_thread.run_sync(self._save_book, self._book.encode())
                return found
            wait_s = backoff.next_s()
            _log.info(
                "learner.not_found_yet",
                learner=short(self._learner),
                num_peers_connected=len(self._network.connected_peers()),
                retry_in_s=round(wait_s, 1),
            )
            await trio.sleep(wait_s)

    async def run(self) -> NoReturn:
        """Stay findable, connected and up to date until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_announced)
                nursery.start_soon(self._keep_learner)
                nursery.start_soon(self._keep_neighbours)
        finally:
            self._save_book(self._book.encode())
        raise AssertionError("these tasks never end by themselves")

    # Ways in.

    async def _enter(self) -> None:
        """Connect to the peers of the ticket and of the last start, unless we are connected."""
        connected = self._network.connected_peers()
        if self._learner in connected:
            return
        remembered = () if connected else self._book.peers()[:MAX_REMEMBERED_TRIED]
        limiter = trio.CapacityLimiter(MAX_PARALLEL_DIALS)

        async def reach(info: PeerInfo, told_by: str | None) -> None:
            async with limiter:
                await self._reach(info, told_by=told_by)

        async with trio.open_nursery() as nursery:
            for info in self._boot:
                nursery.start_soon(reach, info, None)
            named = {info.peer: info.addresses for info in self._boot}
            for info in remembered:
                others = tuple(a for a in info.addresses if a not in named.get(info.peer, ()))
                if others:
                    elsewhere = PeerInfo(peer=info.peer, addresses=others)
                    nursery.start_soon(reach, elsewhere, _BOOK)

    async def _reach(self, info: PeerInfo, *, told_by: str | None) -> bool:
        """Connect to one peer; says once that it fails, and again if that is for another reason."""
        try:
            await self._network.connect(info, timeout_s=CONNECT_S, told_by=told_by)
        except NetworkError as exc:
            if info.peer == self._learner:
                self._trouble = str(exc)
            told = self._unreachable.setdefault(info.peer, set())
            if str(exc) not in told and len(told) < MAX_REASONS_TOLD:
                told.add(str(exc))
                who = "learner" if info.peer == self._learner else "peer"
                _log.warning("peer.unreachable", who=who, error=str(exc), next="trying again")
            return False
        if info.peer == self._learner:
            self._trouble = ""
        if info.peer in self._unreachable:
            del self._unreachable[info.peer]
            _log.info("peer.reachable_again", peer=info.peer)
        self._book.saw(info, now_unix_s=self._unix_now_s())
        return True

    # The learner.

    async def _reach_learner(self) -> PeerInfo | None:
        known = self._known_addresses(self._learner)
        if self._is_connected_to_learner():
            return PeerInfo(peer=self._learner, addresses=known)
        if not self._network.connected_peers():
            return None
        info = PeerInfo(
            peer=self._learner, addresses=merge_addresses(await self._look_up(self._learner), known)
        )
        return info if info.addresses and await self._reach(info, told_by=_DHT) else None

    async def _look_up(self, peer: PeerId) -> tuple[str, ...]:
        """Return what the DHT knows of a peer's addresses; its own advert comes first."""
        own: tuple[str, ...] = ()
        found: PeerInfo | None = None
        try:
            record = await self._network.get_record(advert.dht_key_of(self._run, peer))
            if record is not None:
                said = group_by_peer(
                    advert.verify_advert(record, run=self._run, peer=peer).addresses
                )
                own = next((info.addresses for info in said if info.peer == peer), ())
            found = await self._network.find_peer(peer)
        except (NetworkError, RemoteProtocolError) as exc:
            _log.debug("peer.not_looked_up", peer=short(peer), error=str(exc))
        return merge_addresses(own, found.addresses if found else ())

    def _known_addresses(self, peer: PeerId) -> tuple[str, ...]:
        known = (info.addresses for info in (*self._boot, *self._book.peers()) if info.peer == peer)
        return merge_addresses((), *known)

    async def _keep_learner(self) -> NoReturn:
        while True:
            if self._learner != self._network.peer:
                await self.find_learner()
                await self._until(lambda: not self._is_connected_to_learner())
                _log.warning("learner.lost", learner=short(self._learner), next="looking for it")
            elif not self._network.connected_peers():
                # A learner that restarts calls on the nodes it knew: they need not rejoin.
                await self._enter()
                await trio.sleep(LOOK_AROUND_S)
            else:
                await self._until(lambda: not self._network.connected_peers())

    # The others.

    async def _keep_neighbours(self) -> NoReturn:
        backoff = Backoff(self._rng, cap_s=LOOK_AROUND_S)
        while True:
            await trio.sleep(backoff.next_s())
            if not self._network.connected_peers():
                continue
            await self._look_around()
            await trio.to_thread.run_sync(self._save_book, self._book.encode())

    async def _look_around(self) -> None:
        """Ask who else takes part, and connect to a few of them."""
        try:
            others = list(await self._network.find_providers(rendezvous_key(self._run)))
        except NetworkError as exc:
            _log.debug("peers.not_found", error=str(exc))
            return
        self._rng.shuffle(others)
        met_before = {info.peer for info in self._book.peers()}
        others.sort(key=lambda info: info.peer not in met_before)
        num_failed: Counter[str] = Counter()
        for info in others:
            connected = self._network.connected_peers()
            if info.peer in connected:
                self._book.saw(info, now_unix_s=self._unix_now_s())
                continue
            if len(connected - {self._learner}) >= NUM_NEIGHBOURS or not info.addresses:
                continue
            # Many identities may name one host: where two were not, the others are not, either.
            hosts = {target.host for target in map(target_of, info.addresses) if target}
            if any(num_failed[host] >= MAX_FAILED_PER_HOST for host in hosts):
                continue
            if not await self._reach(info, told_by=_DHT):
                num_failed.update(hosts)

    # Being found.

    async def _keep_announced(self) -> NoReturn:
        for wait_s in ANNOUNCE_S:
            await trio.sleep(wait_s)
            await self._announce()
        while True:
            await trio.sleep(self._rng.uniform(0.8, 1) * REANNOUNCE_S)
            await self._announce()

    async def _announce(self) -> None:
        await self._until(lambda: bool(self._network.connected_peers()))
        try:
            await self._network.provide(rendezvous_key(self._run))
            await self._network.put_record(
                advert.dht_key_of(self._run, self._network.peer), self._sealed_advert()
            )
        except NetworkError as exc:
            _log.debug("self.not_announced", error=str(exc))

    # Small things.

    def _is_connected_to_learner(self) -> bool:
        return self._learner in self._network.connected_peers()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state of our connections."""
        while True:
            change = self._network.connection_changes.next_change
            if condition():
                return
            await change.wait()

    def _save_book(self, encoded: bytes) -> None:
        if self._book_path is None:
            return
        try:
            address_book.save(encoded, self._book_path)
        except StoreError as exc:
            _log.warning("address_book.not_saved", error=str(exc))
