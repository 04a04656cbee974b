"""Payload bytes moved, by whom; for heartbeats, status and reports."""

from collections.abc import Mapping
from typing import Final

from protocols.ids import PeerId

MAX_PEERS: Final = 4096
"""Of more than this, only the sum is known: peer ids cost a stranger nothing."""


class Traffic:
    """Counts chunk bytes sent and received."""

    def __init__(self) -> None:
        self._sent_bytes: dict[PeerId, int] = {}
        self._received_bytes: dict[PeerId, int] = {}
        self._verified_bytes: dict[PeerId, int] = {}
        self._total_sent_bytes = 0
        self._total_received_bytes = 0

    @property
    def sent_bytes(self) -> int:
        """Chunk bytes sent to all."""
        return self._total_sent_bytes

    @property
    def received_bytes(self) -> int:
        """Chunk bytes received from all, wrong and unneeded ones included."""
        return self._total_received_bytes

    @property
    def sent_to(self) -> Mapping[PeerId, int]:
        """Chunk bytes sent, by peer."""
        return dict(self._sent_bytes)

    @property
    def received_from(self) -> Mapping[PeerId, int]:
        """Chunk bytes received, by peer."""
        return dict(self._received_bytes)

    @property
    def verified_from(self) -> Mapping[PeerId, int]:
        """Bytes of chunks that were the right ones, by peer."""
        return dict(self._verified_bytes)

    def add_sent(self, peer: PeerId, num_bytes: int) -> None:
        """Count bytes sent to ``peer``."""
        self._total_sent_bytes += num_bytes
        _add(self._sent_bytes, peer, num_bytes)

    def add_received(self, peer: PeerId, num_bytes: int) -> None:
        """Count bytes received from ``peer``."""
        self._total_received_bytes += num_bytes
        _add(self._received_bytes, peer, num_bytes)

    def add_verified(self, peer: PeerId, num_bytes: int) -> None:
        """Count bytes received from ``peer`` that have proven right."""
        _add(self._verified_bytes, peer, num_bytes)


def _add(counts: dict[PeerId, int], peer: PeerId, num_bytes: int) -> None:
    if peer in counts or len(counts) < MAX_PEERS:
        counts[peer] = counts.get(peer, 0) + num_bytes
