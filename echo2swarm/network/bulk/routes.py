"""Which way to try for a bulk connection, and what did not work lately, without I/O."""

from enum import Enum, auto
from typing import Final

from protocols.ids import PeerId

MEMORY_S: Final = 300.0
"""So long a way that failed is not tried again: each try costs seconds."""


class BulkRoute(Enum):
    """How a bulk connection comes about."""

    DIAL = auto()
    """We dial the other side."""
    CALL_BACK = auto()
    """The other side dials us."""


class Routes:
    """What is known about ways to peers."""

    def __init__(self, *, is_dialable: bool) -> None:
        self._ways = (BulkRoute.DIAL, BulkRoute.CALL_BACK) if is_dialable else (BulkRoute.DIAL,)
        self._failed: dict[tuple[PeerId, BulkRoute], float] = {}

    def ways_to(self, peer: PeerId, *, now_s: float) -> tuple[BulkRoute, ...]:
        """Return the ways worth trying now, the better first."""
        self._failed = {key: until_s for key, until_s in self._failed.items() if until_s > now_s}
        return tuple(way for way in self._ways if (peer, way) not in self._failed)

    def failed(self, peer: PeerId, way: BulkRoute, *, now_s: float) -> None:
        """Note that ``way`` leads nowhere."""
        self._failed[peer, way] = now_s + MEMORY_S
