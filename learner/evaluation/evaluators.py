"""Which nodes can make evaluations, how many may at once, and whether any still will."""

from math import inf
from typing import Final

from learner.state.node_table import NodeTable
from protocols.heartbeat import Directive
from protocols.ids import PeerId

LONELY_S: Final = 30.0
"""Nodes come back sooner than that: if by then none samples with the version, none will."""


class Evaluators:
    """The nodes that have shown that they can keep a version.

    Args:
        nodes: who takes part.
        max_share: of the active ones, while the run trains.
    """

    def __init__(self, nodes: NodeTable, *, max_share: float) -> None:
        self._nodes = nodes
        self._max_share = max_share
        self._able: set[PeerId] = set()
        self._lonely_since_s = inf

    def add(self, peer: PeerId) -> None:
        """Note that a node can keep a version."""
        self._able.add(peer)

    def forget_absent(self) -> None:
        """Forget those that take part no more."""
        self._able &= {node.peer for node in self._nodes.present}

    def max_at_once(self, *, is_training: bool) -> int:
        """Return how many nodes may evaluate now: one at the least, all once training is over."""
        num_active = sum(node.directive is Directive.ACTIVE for node in self._nodes.present)
        share = self._max_share if is_training else 1.0
        return max(1, int(share * num_active))

    def are_at_work(self) -> None:
        """Note that somebody was there just now."""
        self._lonely_since_s = inf

    def are_gone(self, version: int | None, *, newest: int | None, now_s: float) -> bool:
        """Whether, for some time, no node has been there that can evaluate a version.

        Args:
            version: which; None for any.
            newest: the newest version published.
            now_s: the time.
        """
        # Nodes that have an older one, or none yet, will sample with the newest.
        may_come = version is None or version == newest
        is_somebody = any(
            node.peer in self._able and (may_come or node.applied_version == version)
            for node in self._nodes.present
        )
        self._lonely_since_s = inf if is_somebody else min(self._lonely_since_s, now_s)
        return now_s - self._lonely_since_s >= LONELY_S
