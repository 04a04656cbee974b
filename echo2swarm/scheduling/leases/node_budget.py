"""How much one node is given: what it is expected to finish while that is of use."""

from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Final, NamedTuple

from echo2swarm.scheduling.leases.group_table import GroupTable
from echo2swarm.scheduling.leases.learner_pace import LearnerPace
from echo2swarm.scheduling.leases.lease_rules import DispatchRules, NoWork
from echo2swarm.scheduling.leases.node_pace import NodePace
from echo2swarm.scheduling.leases.node_supply import NodeSupply
from echo2swarm.scheduling.leases.zero_signal_groups import ZeroSignalGroups
from echo2swarm.text.format import format_seconds
from protocols.ids import PeerId, PolicyVersion

PATIENCE: Final = 1.5
"""Where the learner has to wait, it is for at most this times what all nodes need for a step."""
LEASES_AT_ONCE: Final = 2
"""What a node has in hand: one that it is at work on, and the next one."""
RETRY_S: Final = 60.0
RETRY_STEPS: Final = 20
"""A node that is too slow is tried again after the longer of both: it may have become faster."""


class Candidate(NamedTuple):
    """The node that asks, as far as it is known."""

    peer: PeerId
    pace: NodePace | None
    num_in_hand: int
    version: PolicyVersion
    """What it will sample with."""
    max_completions: int
    broadcast_s: float | None
    """How long versions usually take to be applied by it."""
    now_s: float


class NodeBudget(NamedTuple):
    """How much a node may be given."""

    limit: int
    """Completions to lease at once, whatever they are."""
    portion: int
    """Completions of a new group."""
    pace: NodePace | None
    """What tells which of them are done in time; None takes them all to be."""
    is_trial: bool = False
    """Whether it is to show if the node is still too slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBudgets:
    """Works out budgets from the state that the dispatcher keeps."""

    rules: DispatchRules
    groups: GroupTable
    supply: NodeSupply
    learner: LearnerPace
    equal: ZeroSignalGroups

    def of(self, node: Candidate) -> NodeBudget | NoWork:
        """Return what a node may be given, or why nothing."""
        period_s, pace = self.learner.period_s(node.now_s), node.pace
        size, is_auto = self.rules.group_size, self.rules.lease_prompts is None
        if self.rules.is_paced and (pace is None or pace.is_guess) and node.num_in_hand:
            return NoWork("its first lease is not finished, so its speed is not known yet")
        if period_s is None or not self.rules.is_paced:
            # Nothing is known of what is late; so long, everybody gets the same.
            return NodeBudget(size if is_auto else node.max_completions, size, None)
        trial = min(size, self.rules.trial_completions)
        if pace is not None and self._is_too_slow(node, pace, period_s):
            if node.num_in_hand or not self._may_try_again(node, pace, period_s):
                return NoWork(self._too_slow(node, pace, period_s), is_lasting=True)
            return NodeBudget(1, 1, None, is_trial=True)
        if pace is None or pace.is_guess:
            return NodeBudget(trial, trial, None)
        portion = self._portion(node, pace, period_s)
        limit = max(portion, self._fair_share(pace, period_s)) if is_auto else node.max_completions
        return NodeBudget(limit, portion, pace)

    def _fair_share(self, pace: NodePace, period_s: float) -> int:
        """Return what a node does in half a step, if as much is left for the others.

        Small leases are finished soon: less of them is stale, and no batch waits long for
        one. But where most of the time does not depend on the size, it is well used.
        """
        steps_ahead = max(1, self.rules.max_staleness - self.rules.publish_every + 1)
        leases_each = 1 if self._is_synchronous else LEASES_AT_ONCE
        num_leases = leases_each * max(1, self.supply.num_nodes)
        num_groups = self.equal.num_to_get(self.rules.groups_per_step)
        share = ceil(num_groups * self.rules.group_size * steps_ahead / num_leases)
        return max(1, floor(min(share, pace.num_within(max(period_s / 2, 2 * pace.usual_s(1))))))

    def _portion(self, node: Candidate, pace: NodePace, period_s: float) -> int:
        """Return how much of a new group a node gets: all of it, if it ever can do that in time.

        A group that is divided waits for the last of its parts, and may be stale by then. With
        S = 0 it can't, and is divided so that all nodes are done at about the same time.
        """
        if self._is_synchronous:
            return min(self.rules.group_size, self._fair_share(pace, period_s))
        window_s = self._usable_s(period_s) - (node.broadcast_s or 0.0)
        return max(1, floor(min(self.rules.group_size, pace.num_within(window_s))))

    def _is_too_slow(self, node: Candidate, pace: NodePace, period_s: float) -> bool:
        """Whether not even one rollout is done in time, and others keep the learner going."""
        num_expected = self.groups.num_expected(used_share=self.equal.used_share)
        is_outrun = num_expected >= self.rules.groups_per_step and not self.learner.is_waiting
        return is_outrun and self._needed_s(node, pace) > self._usable_s(period_s)

    def _needed_s(self, node: Candidate, pace: NodePace) -> float:
        return pace.slow_s(1) + (node.broadcast_s or 0.0)

    def _usable_s(self, period_s: float) -> float:
        steps = PATIENCE if self._is_synchronous else self.rules.max_staleness
        return steps * period_s

    def _may_try_again(self, node: Candidate, pace: NodePace, period_s: float) -> bool:
        rest_s = max(RETRY_S, RETRY_STEPS * period_s)
        return node.now_s - pace.granted_at_s >= rest_s

    def _too_slow(self, node: Candidate, pace: NodePace, period_s: float) -> str:
        usable, arrives = format_seconds(self._usable_s(period_s)), ""
        if node.broadcast_s:
            arrives = f" and {format_seconds(node.broadcast_s)} for new weights"
        return (
            f"too slow to be of use: {format_seconds(pace.slow_s(1))} for a rollout{arrives}, "
            f"which is of use for {usable} (max_staleness {self.rules.max_staleness}); "
            "a faster engine or larger max_staleness helps"
        )

    def num_in_time(self, node: Candidate, use_by: int, budget: NodeBudget) -> float:
        """Return how many completions, beside those in hand, are done before step ``use_by``."""
        if use_by < self.learner.next_step:
            return 0.0
        if budget.pace is None:
            return inf
        seconds = self.learner.start_s(use_by, node.now_s) - node.now_s
        if self._is_synchronous:
            # There is no other time than that which the learner waits.
            seconds = max(self.learner.overdue_s(node.now_s), self._worth_waiting_s())
        elif (
            self.groups.num_expected(used_share=self.equal.used_share)
            < self.rules.groups_per_step + self.learner.is_waiting
        ):
            # The learner will wait for it: late is better than never, within reason.
            seconds = max(seconds, self._worth_waiting_s())
        # While the learner waits, what may be late is better than nothing.
        num = budget.pace.num_within(seconds, is_usual_enough=self.learner.is_waiting)
        return num - node.num_in_hand

    @property
    def _is_synchronous(self) -> bool:
        """Whether nothing can be sampled for the update after the next one."""
        return self.rules.max_staleness < self.rules.publish_every

    def _worth_waiting_s(self) -> float:
        """Return how long the learner is made to wait for one node, for want of others."""
        needed = self.equal.num_to_get(self.rules.groups_per_step) * self.rules.group_size
        return PATIENCE * self.supply.needs_s(needed)
