"""What leases are made by: the run's rules, a node's wish, and how much goes into one."""

from dataclasses import dataclass
from typing import Final

from echo2swarm import freshness
from echo2swarm.dispatch.group_table import OpenGroup
from protocols.ids import PeerId, PolicyVersion
from protocols.sampling import SamplingParams

MAX_LEASE_PROMPT_BYTES: Final = 3 * 1024 * 1024
"""Leaves room in a lease's message for everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRules:
    """What the run's configuration says about leasing."""

    run_seed: int
    groups_per_step: int
    group_size: int
    max_staleness: int
    publish_every: int
    headroom: float
    lease_prompts: int
    lease_timeout_s: float
    sampling: SamplingParams
    num_steps: int
    """Updates of the run; no work is leased for later ones."""
    max_leases_per_node: int = 4
    max_attempts: int = 8
    """How often one sample is leased before its group is given up."""

    @property
    def max_groups_outstanding(self) -> int:
        """Groups in flight or buffered at once."""
        return freshness.max_groups_outstanding(
            groups_per_step=self.groups_per_step,
            max_staleness=self.max_staleness,
            publish_every=self.publish_every,
            headroom=self.headroom,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A node that wants work, and what is known about its speed."""

    peer: PeerId
    session_id: str
    applied_version: PolicyVersion
    max_completions: int
    rollout_s: float | None = None
    """From lease to submission, where measured."""
    step_s: float | None = None
    """The learner's period, where measured."""


@dataclass(frozen=True, slots=True)
class NoWork:
    """Nothing to lease to this node now."""

    why: str


class Cart:
    """What goes into one lease: whole groups, or a part of one if not even one fits."""

    def __init__(self, *, max_groups: int, max_completions: int) -> None:
        self.chosen: list[tuple[OpenGroup, list[int]]] = []
        self._num_groups_left = max_groups
        self._num_completions_left = max_completions
        self._num_bytes_left = MAX_LEASE_PROMPT_BYTES

    def has_room_for(self, prompt_bytes: int, num_samples: int) -> bool:
        """Whether a group would be taken."""
        if not self.chosen:
            return self._num_groups_left > 0
        return (
            self._num_groups_left > 0
            and num_samples <= self._num_completions_left
            and prompt_bytes <= self._num_bytes_left
        )

    def add(self, group: OpenGroup) -> None:
        """Take what nobody is at work on of a group, if there is room."""
        missing = group.missing
        if missing and self.has_room_for(len(group.prompt_tokens), len(missing)):
            missing = missing[: self._num_completions_left]
            self.chosen.append((group, missing))
            self._num_groups_left -= 1
            self._num_completions_left -= len(missing)
            self._num_bytes_left -= len(group.prompt_tokens)
