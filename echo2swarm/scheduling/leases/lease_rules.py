"""What leases are made by: the run's rules, a node's wish, and how much goes into one."""

from dataclasses import dataclass
from math import ceil
from typing import Final

from echo2swarm.scheduling import staleness
from echo2swarm.scheduling.leases.open_group import OpenGroup
from protocols.ids import PeerId, PolicyVersion
from protocols.sampling import SamplingParams

MAX_LEASE_PROMPT_BYTES: Final = 3 * 1024 * 1024
"""Leaves room in a lease's message for everything else."""
MAX_BACKUP_SHARE: Final = 0.1
"""Of what a step needs may be made twice: it is waste, if it turns out not to be needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRules:
    """What the run's configuration says about leasing."""

    run_seed: int
    groups_per_step: int
    group_size: int
    max_staleness: int
    publish_every: int
    headroom: float
    lease_prompts: int | None
    """At most so many groups in a lease; None for what a node does in about half a step."""
    lease_timeout_s: float
    sampling: SamplingParams
    num_steps: int
    """Updates of the run; no work is leased for later ones."""
    max_leases_per_node: int = 4
    max_attempts: int = 8
    """How often one sample is leased in vain before its group is given up."""
    max_replaced: int = 0
    """Groups without signal that are replaced by others, at most, for each update."""
    is_paced: bool = True
    """False leases whatever is asked for, and lets the stale be dropped: to compare with."""

    @property
    def max_groups_outstanding(self) -> int:
        """Groups in flight or buffered at once."""
        return staleness.max_groups_outstanding(
            groups_per_step=self.groups_per_step,
            max_staleness=self.max_staleness,
            publish_every=self.publish_every,
            headroom=self.headroom,
        )

    @property
    def max_backups(self) -> int:
        """Samples that a second node is asked for, for each step."""
        return ceil(MAX_BACKUP_SHARE * self.groups_per_step * self.group_size)

    @property
    def trial_completions(self) -> int:
        """What a node of unknown speed is tried with while others keep the learner going."""
        return max(1, self.group_size // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRequest:
    """A node that wants work."""

    peer: PeerId
    session_id: str
    applied_version: PolicyVersion
    max_completions: int
    broadcast_s: float | None = None
    """How long versions take to be applied by it, few exceptions, where measured."""
    usual_broadcast_s: float | None = None
    """The same in the middle; left out, as above."""


@dataclass(frozen=True, slots=True)
class NoWork:
    """Nothing to lease to this node now."""

    why: str
    is_lasting: bool = False
    """It will be so until something about the node or the run changes."""


class LeaseDraft:
    """What goes into one lease: whole groups, or a part of one if not all of it can be done."""

    def __init__(self, *, max_groups: int, max_completions: int) -> None:
        self.chosen: list[tuple[OpenGroup, list[int]]] = []
        self.num_completions = 0
        self._groups: set[int] = set()
        self._num_groups_left = max_groups
        self._num_completions_left = max_completions
        self._num_bytes_left = MAX_LEASE_PROMPT_BYTES

    def has_room_for(self, prompt_bytes: int, num_samples: int) -> bool:
        """Whether a group would be taken."""
        if not self.chosen:
            return self._num_groups_left > 0 and self._num_completions_left > 0
        return (
            self._num_groups_left > 0
            and num_samples <= self._num_completions_left
            and prompt_bytes <= self._num_bytes_left
        )

    def add(self, group: OpenGroup, indices: list[int]) -> None:
        """Take some samples of a group, if there is room."""
        if (
            indices
            and group.group_id not in self._groups
            and self.has_room_for(len(group.prompt_tokens), len(indices))
        ):
            indices = indices[: self._num_completions_left]
            self.chosen.append((group, indices))
            self._groups.add(group.group_id)
            self.num_completions += len(indices)
            self._num_groups_left -= 1
            self._num_completions_left -= len(indices)
            self._num_bytes_left -= len(group.prompt_tokens)
