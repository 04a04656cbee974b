"""Tokens given out for one bulk connection each, without I/O.

A token is a secret that one peer was given over an authenticated stream. It is
good once, for a short time, for that peer and one purpose. Only its hash is kept.
"""

from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar

from protocols.bulk import TOKEN_LIFE_S
from protocols.ids import PeerId

MAX_TICKETS: Final = 1024
MAX_TICKETS_PER_PEER: Final = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenGrant(Generic[T]):
    """What a token stands for."""

    peer: PeerId
    """Who was given it."""
    purpose: T
    expires_s: float


class TokenBook(Generic[T]):
    """The tokens given out and not shown yet; the oldest is first."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, TokenGrant[T]] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def num_of(self, peer: PeerId) -> int:
        """Return how many tokens ``peer`` has been given and has not shown."""
        return sum(ticket.peer == peer for ticket in self._by_hash.values())

    def issue(self, token: bytes, peer: PeerId, purpose: T, *, now_s: float) -> bool:
        """Note that ``peer`` is given ``token``; returns False if it may not have another.

        Where there are too many, the oldest token of whoever holds most is worth nothing any more.
        """
        self._forget_expired(now_s)
        if self.num_of(peer) >= MAX_TICKETS_PER_PEER:
            return False
        if len(self) >= MAX_TICKETS and not self._drop_of_whoever_holds_most(peer):
            return False
        self._by_hash[_key(token)] = TokenGrant(peer, purpose, now_s + TOKEN_LIFE_S)
        return True

    def redeem(self, token: bytes, *, now_s: float) -> TokenGrant[T] | None:
        """Return what ``token`` stands for, once; None if it is worth nothing."""
        self._forget_expired(now_s)
        return self._by_hash.pop(_key(token), None)

    def revoke(self, token: bytes) -> None:
        """Make ``token`` worthless; it may be so already."""
        self._by_hash.pop(_key(token), None)

    def _drop_of_whoever_holds_most(self, newcomer: PeerId) -> bool:
        held = Counter(ticket.peer for ticket in self._by_hash.values())
        most = max(held.values())
        if most <= held[newcomer]:
            return False
        del self._by_hash[next(key for key, t in self._by_hash.items() if held[t.peer] == most)]
        return True

    def _forget_expired(self, now_s: float) -> None:
        # All live equally long, so that those that expire are in front.
        for key, ticket in tuple(self._by_hash.items()):
            if ticket.expires_s > now_s:
                return
            del self._by_hash[key]


def _key(token: bytes) -> bytes:
    # How long a look-up takes tells nothing about a secret that is hashed first.
    return sha256(token).digest()
