"""What is counted while a swarm is simulated, and the promises that are checked by it."""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

from echo2swarm.scheduling.leases.groups import CompleteGroup, DropReason
from echo2swarm.scheduling.leases.lease_book import LeaseState
from protocols.ids import PeerId
from protocols.reasons import Reason


class PromptFate(IntEnum):
    """Where a prompt is that was drawn."""

    NOT_LEASED = 0
    LEASED = 1
    TRAINED = 2
    DROPPED = 3


@dataclass(slots=True)
class KindCount:
    """What became of the rollouts of one kind of node."""

    num_issued: int = 0
    num_accepted: int = 0
    num_refused: int = 0
    num_trained: int = 0
    num_tokens: float = 0.0
    """Of accepted rollouts."""
    active_s: float = 0.0
    """Node-seconds."""
    usd: float = 0.0


@dataclass(slots=True)
class StepEntry:
    """One update."""

    step: int
    end_s: float
    wait_s: float
    train_s: float
    write_s: float = 0.0
    staleness: tuple[tuple[int, int], ...] = ()
    num_active: int = 0
    num_present: int = 0
    num_in_flight: int = 0
    supplied_rollouts_per_s: float = 0.0
    needed_rollouts_per_s: float | None = None
    usd: float = 0.0
    """Spent so far."""


@dataclass(slots=True)
class Accounts:
    """Everything that is counted."""

    kind_of: dict[PeerId, str] = field(default_factory=dict)
    kinds: dict[str, KindCount] = field(default_factory=dict)
    fates: "array[int]" = field(default_factory=lambda: array("B"))
    """By group, a :class:`PromptFate`."""
    drops: Counter[DropReason] = field(default_factory=Counter)
    refusals: Counter[Reason] = field(default_factory=Counter)
    lease_ends: Counter[LeaseState] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    steps: list[StepEntry] = field(default_factory=list)
    num_released: int = 0
    """Completions that were leased again, or are to be."""
    num_activations: int = 0
    num_deactivations: int = 0
    num_switches: int = 0
    """Selections that changed a set that had been at work."""
    learner_usd: float = 0.0
    away_s: float = 0.0
    """For which the learner was down, or trained again what it had lost."""
    broadcasts_s: "array[float]" = field(default_factory=lambda: array("d"))
    """From publish to applied, every one."""
    leases_s: "array[float]" = field(default_factory=lambda: array("d"))
    """From grant to the last result, of every lease that was done."""

    def of(self, peer: PeerId) -> KindCount:
        """Return the counts of a node's kind."""
        return self.kinds[self.kind_of[peer]]

    def leased(self, group_id: int) -> None:
        """Note that samples of a prompt were leased.

        Raises:
            AssertionError: it was trained on, or dropped, before.
        """
        fates = self.fates
        while len(fates) <= group_id:
            fates.append(PromptFate.NOT_LEASED)
        if fates[group_id] > PromptFate.LEASED:
            raise AssertionError(f"prompt {group_id} is over, and was leased again")
        fates[group_id] = PromptFate.LEASED

    def trained(self, group: CompleteGroup, step: int) -> None:
        """Note that an update used a group.

        Raises:
            AssertionError: it was not leased, or was trained on or dropped before.
        """
        self._close(group.group_id, PromptFate.TRAINED)
        for rollout in group.rollouts:
            self.staleness[step - rollout.version] += 1
            self.of(rollout.peer).num_trained += 1

    def dropped(self, group_id: int, reason: DropReason) -> None:
        """Note that a group was given up.

        Raises:
            AssertionError: it was not leased, or was trained on or dropped before.
        """
        self._close(group_id, PromptFate.DROPPED)
        self.drops[reason] += 1

    @property
    def num_leased(self) -> int:
        """Prompts that are leased and neither trained nor dropped."""
        return self.fates.count(PromptFate.LEASED)

    @property
    def node_usd(self) -> float:
        """Spent on nodes."""
        return sum(kind.usd for kind in self.kinds.values())

    def _close(self, group_id: int, fate: PromptFate) -> None:
        if group_id >= len(self.fates) or self.fates[group_id] != PromptFate.LEASED:
            raise AssertionError(f"prompt {group_id} ends as {fate.name}, and was not leased")
        self.fates[group_id] = fate
