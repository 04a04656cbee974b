"""What the nodes that have work make together, during this step and the one before."""

from math import inf

from protocols.ids import PeerId


class NodeSupply:
    """Counts nodes from their first lease in hand to their last."""

    def __init__(self) -> None:
        self._per_s: dict[PeerId, float] = {}
        self._total_per_s = 0.0
        self._most_per_s = self._most_before_per_s = 0.0
        self._most_nodes = self._most_nodes_before = 0

    @property
    def num_nodes(self) -> int:
        """How many had work at once, at most."""
        return max(self._most_nodes, self._most_nodes_before)

    @property
    def num_idle(self) -> int:
        """How many of them have no work now."""
        return self.num_nodes - len(self._per_s)

    @property
    def per_s(self) -> float:
        """What they made together, at most."""
        return max(self._most_per_s, self._most_before_per_s)

    def needs_s(self, num_completions: int) -> float:
        """Return what they need for so many completions; ``inf`` as long as there are none."""
        return num_completions / self.per_s if self.per_s > 0 else inf

    def set(self, peer: PeerId, per_s: float | None) -> None:
        """Note that a node has work, and how much it makes; 0 if that is not known, None if none.

        None says that it has no work any more.
        """
        self._total_per_s -= self._per_s.pop(peer, 0.0)
        if per_s is not None:
            self._per_s[peer] = per_s
            self._total_per_s += per_s
        elif not self._per_s:
            self._total_per_s = 0.0  # No sum of errors is kept.
        self._most_per_s = max(self._most_per_s, self._total_per_s)
        self._most_nodes = max(self._most_nodes, len(self._per_s))

    def next_step(self) -> None:
        """Note that a step is over."""
        self._most_before_per_s, self._most_per_s = self._most_per_s, self._total_per_s
        self._most_nodes_before, self._most_nodes = self._most_nodes, len(self._per_s)
