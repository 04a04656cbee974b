"""Kademlia through py-libp2p, with lookups that ask others instead of trusting a local copy.

The library's own look-ups stop at what this peer has stored: a value up to a
day old, and for the providers of a key that we provide, only ourselves.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import structlog
import trio
from libp2p.abc import IHost
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.peer.id import ID
from libp2p.records.validator import NamespacedValidator, Validator

from echo2swarm.network.addresses import merge_addresses
from echo2swarm.network.admission.dial_policy import DialPolicy
from echo2swarm.network.admission.provider_table import MAX_PROVIDERS
from echo2swarm.network.base import PeerInfo
from echo2swarm.network.libp2p.host import peer_store_addresses, texts
from echo2swarm.network.libp2p.providers import Providers, peer_name
from echo2swarm.network.records import NAMESPACE, check_record, newest_record
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.ids import PeerId

LOOKUP_S: Final = 20.0
"""Longest walk towards a key."""
QUERY_S: Final = 6.0
"""Longest wait for one peer's answer."""
STORE_S: Final = 20.0
REPLICATION: Final = 20
PARALLEL: Final = 10
_MULTIHASH_SHA256: Final = "1220"

T = TypeVar("T")
_log = structlog.get_logger()


class _AdvertValidator(Validator):  # type: ignore[misc]  # untyped library
    """Lets only genuine adverts into the store, and the newest of them out."""

    def validate(self, key: str, value: bytes) -> None:
        try:
            check_record(key, value)
        except RemoteProtocolError as exc:
            raise ValueError(str(exc)) from exc

    def select(self, key: str, values: list[bytes]) -> int:
        newest = newest_record(key, values)
        return values.index(newest) if newest is not None else 0


class Dht:
    """What the network port asks of the DHT."""

    def __init__(self, host: IHost, policy: DialPolicy) -> None:
        self._host = host
        self._policy = policy
        self._own = host.get_id()
        self.service = KadDHT(
            host,
            DHTMode.SERVER,
            strict_validation=True,
            validator_changed=True,
            validator=NamespacedValidator({NAMESPACE: _AdvertValidator()}, strict_validation=True),
            # All machines of one contributor sit in one subnet, and what they store is signed.
            max_peers_per_subnet=0,
        )
        self._providers = Providers(host, self.service.peer_routing, policy)
        self.service.provider_store = self._providers

    async def follow_connections(self) -> None:
        """Make the routing table agree with who is connected.

        The library fills it only by walking at random, which connects everybody to
        everybody, and keeps the dead, each of which costs every lookup a timeout.
        """
        connected = set(self._host.get_connected_peers())
        table = self.service.routing_table
        for peer in set(table.get_peer_ids()) - connected:
            table.remove_peer(peer)
        for peer in connected - set(table.get_peer_ids()):
            await table.add_peer(peer)

    async def provide(self, key: bytes) -> None:
        """Tell the peers closest to ``key`` that we belong to it."""
        await self.follow_connections()
        with trio.move_on_after(STORE_S):
            await self.service.provide(_MULTIHASH_SHA256 + key.hex())

    async def find_providers(self, key: bytes) -> Sequence[PeerInfo]:
        """Ask the peers closest to ``key``, and our own store, who belongs to it."""
        multihash = bytes.fromhex(_MULTIHASH_SHA256) + key
        store = self._providers

        async def ask(peer: ID) -> list[object]:
            providers, _ = await store._get_providers_from_peer_with_closers(peer, multihash)
            return list(providers)[:MAX_PROVIDERS]

        answers = await self._ask_all(await self._closest(multihash), ask)
        found: dict[PeerId, tuple[str, ...]] = {}
        for info in (*store.get_providers(multihash), *(i for answer in answers for i in answer)):
            peer = peer_name(info.peer_id)
            if peer is not None and info.peer_id != self._own:
                places = [text for text in texts(info.addrs) if not self._policy.objection(text)]
                found[peer] = merge_addresses(found.get(peer, ()), places)
        return [
            PeerInfo(
                peer=peer,
                addresses=merge_addresses(found[peer], peer_store_addresses(self._host, peer)),
            )
            for peer in sorted(found)
        ]

    def reached(self, peer: PeerId) -> None:
        """Note that we have connected to ``peer`` at an address of its own."""
        self._providers.table.reached(peer)

    def failed(self, peer: PeerId) -> None:
        """Note that ``peer`` could not be reached."""
        self._providers.table.failed(peer)

    async def find_peer(self, peer: PeerId) -> PeerInfo | None:
        """Ask the peers closest to ``peer`` for its addresses."""
        target = ID.from_string(peer)
        await self._closest(target.to_bytes())
        addresses = peer_store_addresses(self._host, peer)
        return PeerInfo(peer=peer, addresses=addresses) if addresses else None

    async def put(self, key: str, value: bytes) -> None:
        """Store an advert at the peers closest to its key."""
        try:
            check_record(key, value)
        except RemoteProtocolError as exc:
            raise LocalProtocolError(f"not a record to publish: {exc}") from exc
        held = self.service.value_store.get(key.encode())
        if held is not None:
            value = newest_record(key, (value, held.value)) or value
        await self.follow_connections()
        with trio.move_on_after(STORE_S):
            await self.service.put_value(key, value)

    async def get(self, key: str) -> bytes | None:
        """Return the newest advert that we, or the peers closest to its key, hold."""
        held = self.service.value_store.get(key.encode())

        async def ask(peer: ID) -> bytes | None:
            value = await self.service.value_store._get_from_peer(peer, key.encode())
            return value if isinstance(value, bytes) else None

        answers = await self._ask_all(await self._closest(key.encode()), ask)
        values = [value for value in answers if value is not None]
        return newest_record(key, values if held is None else [*values, held.value])

    async def _closest(self, key: bytes) -> list[ID]:
        """Walk towards ``key``; in a small swarm that ends at everybody connected."""
        await self.follow_connections()
        walked: list[ID] = []
        with trio.move_on_after(LOOKUP_S):
            walked = await self.service.peer_routing.find_closest_peers_network(key)
        near = self.service.routing_table.find_local_closest_peers(key, REPLICATION)
        return [p for p in dict.fromkeys((*walked, *near)) if p != self._own][: 2 * REPLICATION]

    async def _ask_all(self, peers: Sequence[ID], ask: Callable[[ID], Awaitable[T]]) -> list[T]:
        """Ask several peers at once; who does not answer in time is left out."""
        answers: list[T] = []
        limiter = trio.CapacityLimiter(PARALLEL)

        async def one(peer: ID) -> None:
            async with limiter:
                with trio.move_on_after(QUERY_S):
                    try:
                        answers.append(await ask(peer))
                    except Exception as exc:
                        _log.debug("dht.unanswered", peer=str(peer)[-8:], error=repr(exc)[:200])

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(one, peer)
        return answers
