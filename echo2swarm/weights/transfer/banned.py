"""Peers that sent us wrong bytes: they get none from us for a while.

A peer that spoils others' downloads would otherwise still download from all of them, and
take up the uplinks that it does not add to.
"""

from typing import Final

import trio

from protocols.ids import PeerId

SHUN_S: Final = 600.0
MAX_SHUNNED: Final = 1024


class BanList:
    """Who is shunned now; shared by what downloads and what serves."""

    def __init__(self) -> None:
        self._until_s: dict[PeerId, float] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return self._until_s.get(peer, 0.0) > trio.current_time()

    def add(self, peer: PeerId) -> None:
        """Shun ``peer`` from now on."""
        self._until_s.pop(peer, None)
        if len(self._until_s) >= MAX_SHUNNED:
            del self._until_s[next(iter(self._until_s))]
        self._until_s[peer] = trio.current_time() + SHUN_S
