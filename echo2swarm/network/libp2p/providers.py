"""The library's store of DHT providers, kept by our rules: :mod:`.provider_table`.

The library takes the first twenty that come, with whatever addresses they name. Here a peer
names ports: its host is the one from which it is connected.
"""

from typing import Final

import trio
from libp2p.abc import IHost
from libp2p.kad_dht.provider_store import ProviderStore
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from echo2swarm.network.admission.dial_policy import DialPolicy, target_of
from echo2swarm.network.admission.provider_table import ProviderTable
from echo2swarm.network.libp2p.endpoints import ends_of, open_connections
from echo2swarm.network.libp2p.host import texts
from protocols.errors import MalformedMessageError
from protocols.ids import PeerId, public_key_of

_OURS: Final = "/echo2/"


class Providers(ProviderStore):  # type: ignore[misc]  # untyped library
    """Providers that may be told to others."""

    def __init__(self, host: IHost, peer_routing: object, policy: DialPolicy) -> None:
        super().__init__(host, peer_routing)
        self._policy = policy
        self._own = PeerId(str(host.get_id()))
        self.table = ProviderTable(self._own, self._is_member)

    def _is_member(self, peer: PeerId) -> bool:
        """Return whether a peer is connected, and says that it speaks protocols of ours."""
        if not open_connections(self.host, peer):
            return False
        store, target = self.host.get_peerstore(), ID.from_string(peer)
        if target not in store.peer_ids():
            return False
        return any(str(each).startswith(_OURS) for each in store.get_protocols(target))

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        """Take in what a peer that is connected says of itself, or we of ourselves."""
        peer = peer_name(provider.peer_id)
        if peer is None:
            return
        addresses, seen_at = texts(provider.addrs), "127.0.0.1"
        if peer != self._own:
            hosts = self._hosts_of(peer)
            if not hosts:
                return  # It is gone again.
            seen_at = hosts[0]
            addresses = tuple(
                where
                for where in addresses
                if (target := target_of(where)) is not None
                and target.host in hosts
                and not self._policy.objection(where)
            )
        self.table.tell(key, peer, addresses, seen_at=seen_at, now_s=trio.current_time())

    def get_providers(self, key: bytes) -> list[PeerInfo]:
        """Return who belongs to ``key``."""
        return [
            PeerInfo(ID.from_string(each.peer), [Multiaddr(text) for text in each.addresses])
            for each in self.table.providers(key, now_s=trio.current_time())
        ]

    def cleanup_expired(self) -> None:
        """Nothing is left over: what expired is dropped when it is asked for."""

    def _hosts_of(self, peer: PeerId) -> list[str]:
        hosts: list[str] = []
        for connection in open_connections(self.host, peer):
            try:
                hosts.append(ends_of(connection.muxed_conn)[1].host)
            except OSError:
                continue  # it has just been closed
        return hosts


def peer_name(peer: ID) -> PeerId | None:
    """Return the name of a peer that can be one of ours."""
    name = PeerId(str(peer))
    try:
        public_key_of(name)
    except MalformedMessageError:
        return None
    return name
