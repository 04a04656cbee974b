"""Who belongs to a key, as others are told when they ask, without I/O.

There is room for some, and anybody can come under many identities. So nobody is pushed out
by who has shown less: peers that we have connected to at their address count most, then those
that are connected to us, then those that were. And of one subnet there are only so many.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocols.ids import PeerId

MAX_PROVIDERS: Final = 20
"""Of one key: the k of Kademlia."""
MAX_PER_SUBNET: Final = 10
MAX_KEYS: Final = 32
TTL_S: Final = 24 * 3600.0


@dataclass(slots=True)
class Provider:
    """One peer that says it belongs to a key."""

    peer: PeerId
    addresses: tuple[str, ...]
    subnet: str
    told_at_s: float
    is_reached: bool = False
    """Whether we have connected to it at an address of its own."""


@dataclass(slots=True)
class _Key:
    providers: dict[PeerId, Provider] = field(default_factory=dict)
    is_own: bool = False


def subnet_of(host: str) -> str:
    """Return the network that counts as one owner's: /24 of IPv4, /48 of IPv6."""
    ip = ipaddress.ip_address(host)
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))


class ProviderTable:
    """The providers of a few keys.

    Args:
        own: our own peer id; we are never pushed out, nor are keys of ours.
        is_present: whether a peer is connected now, and takes part in such runs.
    """

    def __init__(self, own: PeerId, is_present: Callable[[PeerId], bool]) -> None:
        self._own = own
        self._is_present = is_present
        self._keys: dict[bytes, _Key] = {}

    def tell(
        self, key: bytes, peer: PeerId, addresses: tuple[str, ...], *, seen_at: str, now_s: float
    ) -> None:
        """Take in that ``peer`` says it belongs to ``key``.

        Args:
            key: what it belongs to.
            peer: who says so, of itself.
            addresses: where it may be dialled.
            seen_at: the IP address from which it said so.
            now_s: the time.
        """
        entry = self._entry(key)
        if entry is None and peer != self._own:
            return
        entry = entry or self._keys.setdefault(key, _Key())
        entry.is_own = entry.is_own or peer == self._own
        known = entry.providers.get(peer)
        new = Provider(peer, addresses, subnet_of(seen_at), now_s)
        if known is not None:
            new.is_reached = known.is_reached and known.addresses == addresses
            del entry.providers[peer]
        is_moved = known is None or known.subnet != new.subnet
        if not is_moved or self._make_room(entry, new):
            entry.providers[peer] = new

    def providers(self, key: bytes, *, now_s: float) -> tuple[Provider, ...]:
        """Return who belongs to ``key``; the best first."""
        entry = self._keys.get(key)
        if entry is None:
            return ()
        for provider in tuple(entry.providers.values()):
            if now_s - provider.told_at_s > TTL_S:
                del entry.providers[provider.peer]
        return tuple(sorted(entry.providers.values(), key=self._rank, reverse=True))

    def reached(self, peer: PeerId) -> None:
        """Note that we have connected to ``peer`` at an address of its own."""
        for entry in self._keys.values():
            if (provider := entry.providers.get(peer)) is not None:
                provider.is_reached = True

    def failed(self, peer: PeerId) -> None:
        """Note that ``peer`` was not found where it said; forgets it unless it is here."""
        for entry in self._keys.values():
            if (provider := entry.providers.get(peer)) is not None:
                provider.is_reached = False
                if not self._is_present(peer):
                    del entry.providers[peer]

    def _entry(self, key: bytes) -> _Key | None:
        """Return what is known of a key, or room for one; None if there is none."""
        if key in self._keys:
            return self._keys[key]
        if len(self._keys) >= MAX_KEYS:
            spare = (
                k
                for k, entry in self._keys.items()
                if not entry.is_own and not any(map(self._rank, entry.providers.values()))
            )
            oldest = next(spare, None)
            if oldest is None:
                return None
            del self._keys[oldest]
        return self._keys.setdefault(key, _Key())

    def _rank(self, provider: Provider) -> int:
        if provider.peer == self._own:
            return 3
        if provider.is_reached:
            return 2
        return 1 if self._is_present(provider.peer) else 0

    def _make_room(self, entry: _Key, new: Provider) -> bool:
        """Return whether there is a place for ``new``; a worse one is pushed out for it."""
        all_of_them = [p for p in entry.providers.values() if p.peer != self._own]
        sizes: dict[str, int] = {}
        for provider in all_of_them:
            sizes[provider.subnet] = sizes.get(provider.subnet, 0) + 1
        same = [p for p in all_of_them if p.subnet == new.subnet]
        if len(same) >= MAX_PER_SUBNET and new.peer != self._own:
            worst = min(same, key=lambda p: (self._rank(p), p.told_at_s))
            is_better = self._rank(new) > self._rank(worst)
        elif len(entry.providers) >= MAX_PROVIDERS:
            worst = min(all_of_them, key=lambda p: (self._rank(p), -sizes[p.subnet], p.told_at_s))
            standing = (self._rank(new), -sizes.get(new.subnet, 0) - 1)
            is_better = standing > (self._rank(worst), -sizes[worst.subnet])
        else:
            return True
        if is_better:
            del entry.providers[worst.peer]
        return is_better
