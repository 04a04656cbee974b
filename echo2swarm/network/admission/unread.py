"""How much may lie here that peers have sent and nobody has read, and who has to go if it is more.

Flow control limits what one stream may bring. What all streams may bring together is more memory
than a machine has, so there is a limit for all, and whoever holds most of it goes first.
"""

from collections.abc import Mapping
from typing import Final

from echo2swarm.network.admission.proven import IsProven
from protocols.ids import PeerId

MAX_STRANGERS_BYTES: Final = 64 * 1024 * 1024
"""For all peers together that are not proven: several of the largest requests."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""For all peers together."""


def who_has_to_go(held_bytes: Mapping[PeerId, int], *, is_proven: IsProven) -> list[PeerId]:
    """Return the peers whose connections to close, given what is unread of each."""
    largest_first = sorted(held_bytes, key=lambda peer: (-held_bytes[peer], peer))
    strangers = [peer for peer in largest_first if not is_proven(peer)]
    gone = _excess(strangers, held_bytes, MAX_STRANGERS_BYTES)
    left = [peer for peer in largest_first if peer not in gone]
    return gone + _excess(left, held_bytes, MAX_BYTES)


def _excess(peers: list[PeerId], held_bytes: Mapping[PeerId, int], limit: int) -> list[PeerId]:
    total = sum(held_bytes[peer] for peer in peers)
    gone = []
    for peer in peers:
        if total <= limit:
            break
        gone.append(peer)
        total -= held_bytes[peer]
    return gone
