"""What one node is given: only what it is expected to finish while it is of use.

Four kinds of work, in this order: samples that somebody gave back, samples that somebody
is late with, new prompts, and what this very node failed on before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import floor
from typing import Final, NamedTuple

from echo2swarm.scheduling import staleness
from echo2swarm.scheduling.leases.group_table import GroupTable
from echo2swarm.scheduling.leases.groups import QueuedPrompt
from echo2swarm.scheduling.leases.late_leases import LateLeases
from echo2swarm.scheduling.leases.learner_pace import LearnerPace
from echo2swarm.scheduling.leases.lease_book import LeaseBook, LeaseRecord
from echo2swarm.scheduling.leases.lease_rules import DispatchRules, LeaseDraft, NoWork
from echo2swarm.scheduling.leases.node_budget import Candidate, NodeBudget, NodeBudgets
from echo2swarm.scheduling.leases.node_pace import PaceBook
from echo2swarm.scheduling.leases.node_supply import NodeSupply
from echo2swarm.scheduling.leases.open_group import OpenGroup
from echo2swarm.scheduling.leases.prompt_queue import PromptQueue
from echo2swarm.scheduling.leases.zero_signal_groups import ZeroSignalGroups
from echo2swarm.text.format import format_seconds
from protocols.ids import GroupId, PolicyVersion
from protocols.leases import MAX_GROUPS

_MAX_SEEN: Final = 64
"""Groups that one request looks at; the others' turn comes."""
_MAX_AWAITED_SEEN: Final = 8
_SAME_SPEED: Final = 1.25
"""Nodes within this factor of the middle one are neither fast nor slow."""
_MAX_LONGER: Final = 4.0
_MAX_DOUBLED: Final = 16
"""Times, after which everything may be asked twice."""
MUCH_FASTER: Final = 4.0
"""What the learner waits for is asked of a second node that takes so much less time."""


class LeaseChoice(NamedTuple):
    """What a node is given."""

    samples: list[tuple[OpenGroup, list[int]]]
    use_by: int
    """The last step that may use it."""
    is_trial: bool
    """It is to show whether the node is still too slow."""


@dataclass(slots=True, kw_only=True)
class LeaseChooser:
    """Chooses by the state that the dispatcher keeps; opens groups as it needs them."""

    rules: DispatchRules
    groups: GroupTable
    prompts: PromptQueue
    leases: LeaseBook
    late: LateLeases
    paces: PaceBook
    supply: NodeSupply
    learner: LearnerPace
    equal: ZeroSignalGroups
    mean_tokens: Callable[[], float | None]
    """Of the completions accepted lately."""
    budgets: NodeBudgets = field(init=False)

    def __post_init__(self) -> None:
        """Set up what works out how much."""
        self.budgets = NodeBudgets(
            rules=self.rules,
            groups=self.groups,
            supply=self.supply,
            learner=self.learner,
            equal=self.equal,
        )

    def choose(self, node: Candidate) -> LeaseChoice | NoWork:
        """Return what to lease to a node, or why nothing."""
        budget = self.budgets.of(node)
        if isinstance(budget, NoWork):
            return budget
        max_groups = self.rules.lease_prompts
        cart = LeaseDraft(
            max_groups=MAX_GROUPS if max_groups is None else min(max_groups, MAX_GROUPS),
            max_completions=min(budget.limit, node.max_completions),
        )
        others = list(islice(self._given_back(node), _MAX_SEEN))
        for group in others:
            if node.peer not in group.avoid:
                self._add(cart, group, group.missing, node, budget)
        self._add_late(cart, node, budget)
        refusal = self._add_new(cart, node, budget)
        for group in others:
            if node.peer in group.avoid:
                self._add(cart, group, group.missing, node, budget)
        if not cart.chosen and self.learner.is_waiting:
            self._add_awaited(cart, node, budget)
        if not cart.chosen:
            return refusal or NoWork("as much work is in flight as can be used in time")
        return LeaseChoice(
            samples=cart.chosen,
            use_by=min(self._use_by(group, node) for group, _ in cart.chosen),
            is_trial=budget.is_trial,
        )

    # Of what.

    def _use_by(self, group: OpenGroup, node: Candidate) -> int:
        version = node.version
        if group.oldest_version is not None:
            version = PolicyVersion(min(version, group.oldest_version))
        return staleness.last_usable_step(version, max_staleness=self.rules.max_staleness)

    def _given_back(self, node: Candidate) -> Iterator[OpenGroup]:
        """Yield groups with missing samples, but none that this node would make older.

        What others are at work on was given to them for the time that the group had.
        """
        for group in self.groups.with_missing():
            if group.version <= node.version or group.num_missing == len(group.slots):
                yield group

    def _add(
        self,
        cart: LeaseDraft,
        group: OpenGroup,
        indices: list[int],
        node: Candidate,
        budget: NodeBudget,
    ) -> None:
        """Take as many of a group's samples as the node can finish before they are useless."""
        if not indices:
            return
        room = self.budgets.num_in_time(node, self._use_by(group, node), budget) / self._longer(
            group
        )
        room -= cart.num_completions
        if room < 1:
            return
        cart.add(group, indices if room >= len(indices) else indices[: floor(room)])

    def _longer(self, group: OpenGroup) -> float:
        """Return by how much a group's completions are longer than others, from those it has."""
        mean, usual = group.mean_tokens, self.mean_tokens()
        if mean is None or not usual:
            return 1.0
        return min(max(mean / usual, 1 / _MAX_LONGER), _MAX_LONGER)

    def _add_new(self, cart: LeaseDraft, node: Candidate, budget: NodeBudget) -> NoWork | None:
        """Open groups; returns why not one of them, if that is for want of time."""
        use_by = staleness.last_usable_step(node.version, max_staleness=self.rules.max_staleness)
        num_left = self._num_to_open(node, use_by, budget)
        if not num_left:
            return None
        room = self.budgets.num_in_time(node, use_by, budget)
        if room < cart.num_completions + budget.portion:
            return None if cart.chosen else self._no_time(node, use_by)
        rank = self._speed_rank(node)
        while num_left and room >= cart.num_completions + budget.portion:
            prompt = self.prompts.choose(rank)
            if prompt is None or not cart.has_room_for(len(prompt.tokens), budget.portion):
                break
            self.prompts.remove(prompt)
            cart.add(self._open(prompt, node), list(range(budget.portion)))
            num_left -= 1
            if not cart.has_room_for(0, budget.portion):
                break
        return None

    def _open(self, prompt: QueuedPrompt, node: Candidate) -> OpenGroup:
        nothing = [None] * self.rules.group_size
        return self.groups.add(GroupId(prompt.index), prompt.tokens, nothing, version=node.version)

    def _num_to_open(self, node: Candidate, use_by: int, budget: NodeBudget) -> int:
        """Return how many groups more can be used while results of the node are of use."""
        if not self.rules.is_paced:
            return MAX_GROUPS if use_by >= self.learner.next_step else 0
        rules, used_share = self.rules, self.equal.used_share
        num_outstanding = self.groups.num_expected(used_share=used_share)
        num_used = min(
            rules.max_groups_outstanding - num_outstanding,
            (rules.num_steps - self.learner.next_step) * rules.groups_per_step - num_outstanding,
            # Those of older versions, and of its own, are used before it.
            (use_by - self.learner.next_step + 1) * rules.groups_per_step
            - self.groups.num_up_to(node.version, used_share=used_share),
        )
        num_left = self.equal.num_to_get(num_used)
        if node.num_in_hand:
            # What is left is for those without work, before anybody gets another lease.
            num_left -= self.supply.num_idle * max(1, budget.limit // rules.group_size)
        return max(0, num_left)

    def _no_time(self, node: Candidate, use_by: int) -> NoWork:
        left_s = max(0.0, self.learner.start_s(use_by, node.now_s) - node.now_s)
        return NoWork(
            f"no rollout of version {node.version} would be done in the {format_seconds(left_s)} "
            "for which it is of use; the next version brings work"
        )

    def _speed_rank(self, node: Candidate) -> float | None:
        """Return how fast a node is among all; None if it is about as fast as most."""
        middle_s = self.paces.median_each_s()
        if node.pace is None or middle_s is None:
            return None
        if 1 / _SAME_SPEED <= node.pace.each_s / middle_s <= _SAME_SPEED:
            return None
        return self.paces.speed_rank(node.peer)

    # Of what others are late with.

    def _add_late(self, cart: LeaseDraft, node: Candidate, budget: NodeBudget) -> None:
        """Take samples of late leases that this node is expected to finish sooner."""
        if not self._may_back_up(node, budget):
            return
        for lease in self.late.now_late(node.now_s):
            if not self._num_to_back_up(cart, node):
                return
            # One that has been late for long is expected to take as long again.
            left_s = node.now_s - lease.granted_at_s
            own_s = 0.0 if node.pace is None else node.pace.usual_s(node.num_in_hand + 1)
            if lease.peer == node.peer or own_s > left_s:
                continue
            by_group = self._lacking(lease)
            if not by_group:
                self.late.done_with(lease)
            for group, indices in by_group.values():
                if node.peer not in group.avoid:
                    some = indices[: self._num_to_back_up(cart, node)]
                    self._add(cart, group, some, node, budget)

    def _may_back_up(self, node: Candidate, budget: NodeBudget) -> bool:
        """Whether a node may be asked for what others have in hand.

        Not one that is late itself: as far as anybody knows, it hangs. One of unknown speed only
        while the learner waits, for what every node is tried with.
        """
        if not self.rules.is_paced or budget.is_trial:
            return False
        if any(lease.late_at_s <= node.now_s for lease in self.leases.of_peer(node.peer)):
            return False
        return self.learner.is_waiting if node.pace is None else not node.pace.is_guess

    def _lacking(self, lease: LeaseRecord) -> dict[GroupId, tuple[OpenGroup, list[int]]]:
        """Return what a lease lacks that nobody else is at work on."""
        found: dict[GroupId, tuple[OpenGroup, list[int]]] = {}
        for group_id, index in sorted(lease.unsettled):
            group = self.groups.get_open(group_id)
            if group is not None and group.slots[index].may_be_backed_up(lease.lease_id):
                found.setdefault(group_id, (group, []))[1].append(index)
        return found

    def _num_to_back_up(self, cart: LeaseDraft, node: Candidate) -> int:
        """Return how many samples more may be asked of a second node.

        Each usual period that the learner has waited in vain doubles it: what idle nodes make
        costs less than a learner that stands still until a lease times out.
        """
        num_doubled = 0
        if self.learner.is_waiting:
            step_s = self.supply.needs_s(self.rules.groups_per_step * self.rules.group_size)
            num_periods = self.learner.num_periods_overdue(node.now_s, assumed_s=step_s)
            num_doubled = floor(min(_MAX_DOUBLED, num_periods))
        most = self.rules.max_backups << num_doubled
        return max(0, most - self.groups.num_backups - cart.num_completions)

    def _add_awaited(self, cart: LeaseDraft, node: Candidate, budget: NodeBudget) -> None:
        """Take samples that the learner waits for, if this node is much faster."""
        if node.pace is None or not self._may_back_up(node, budget):
            return
        for group in islice(self.groups.oldest_open(), _MAX_AWAITED_SEEN):
            if node.peer in group.avoid:
                continue
            indices: list[int] = []
            num_left = self._num_to_back_up(cart, node)
            for index, slot in enumerate(group.slots):
                own_s = node.pace.usual_s(
                    node.num_in_hand + cart.num_completions + len(indices) + 1
                )
                if (
                    len(indices) < num_left
                    and slot.holder is not None
                    and slot.may_be_backed_up(slot.holder)
                    and MUCH_FASTER * own_s < self._left_s(slot.holder, node)
                ):
                    indices.append(index)
            self._add(cart, group, indices, node, budget)

    def _left_s(self, lease_id: str, node: Candidate) -> float:
        """Return how long a lease will still take, so far as can be said; 0 if not at all."""
        lease = self.leases.get(lease_id)
        if lease is None or lease.peer == node.peer:
            return 0.0
        since_s = node.now_s - lease.granted_at_s
        return max((lease.usual_s or 0.0) - since_s, since_s / 2)
