"""When a version reaches whom: the time model of the broadcast."""

import random
from collections.abc import Sequence

from echo2swarm.simulate.node import SimNode
from echo2swarm.simulate.tables import MBIT_BYTES, BroadcastTable
from echo2swarm.weights.overlay.broadcast_bound import broadcast_bound_s

MB: float = 1e6


class BroadcastModel:
    """Seconds from a version's publication until each node holds it.

    All links together set the least possible time; the mesh takes ``overhead`` times that for
    the last node, and the others have it up to a share ``spread`` earlier. What that rests on
    is measured by ``python -m benchmarks.mesh_sim`` with the broadcast's own cores.
    """

    def __init__(self, table: BroadcastTable, *, upload_mbit: float, rng: random.Random) -> None:
        self._table = table
        self._source_bytes_per_s = upload_mbit * MBIT_BYTES
        self._rng = rng
        self.expected_s: float | None = None
        """What the links let the last version take; None where links do not matter."""

    @property
    def whole_bytes(self) -> float:
        """What a node without any version fetches."""
        return (self._table.whole_mb or self._table.payload_mb) * MB

    @property
    def payload_bytes(self) -> float:
        """What a node fetches that holds the version before; 0 if links do not matter."""
        return 0.0 if self._table.fixed_s is not None else self._table.payload_mb * MB

    def to_all_s(self, nodes: Sequence[SimNode]) -> list[float]:
        """Return the seconds for each of ``nodes``, when all fetch at once."""
        table = self._table
        if not nodes:
            return []
        if table.fixed_s is not None:
            return [table.fixed_s * (1 - table.spread * self._rng.random()) for _ in nodes]
        last_s = table.overhead * broadcast_bound_s(
            self.payload_bytes,
            source_bytes_per_s=self._source_bytes_per_s,
            up_bytes_per_s=[node.kind.up_mbit * MBIT_BYTES for node in nodes],
            down_bytes_per_s=[node.kind.down_mbit * MBIT_BYTES for node in nodes],
        )
        self.expected_s = last_s
        return [
            max(
                last_s * (1 - table.spread * self._rng.random()),
                self.payload_bytes / (node.kind.down_mbit * MBIT_BYTES),
            )
            for node in nodes
        ]

    def to_one_s(self, node: SimNode) -> float:
        """Return the seconds for a node that joins, when others hold the version already."""
        if self._table.fixed_s is not None:
            return self._table.fixed_s
        rate = min(self._source_bytes_per_s, node.kind.down_mbit * MBIT_BYTES)
        return self._table.overhead * self.whole_bytes / rate
