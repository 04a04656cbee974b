"""A swarm on virtual time around the real dispatch core: nodes wait instead of sampling.

It knows no network and no faults; what it is for is to see which work the core hands out,
and what becomes of it. Nodes behave as ``echo2-node`` does: two leases in hand, the newer
policy applied between them, everything of a lease submitted at once.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.group_table import SampleStatus
from echo2swarm.scheduling.leases.groups import AcceptedRollout, DropReason
from echo2swarm.scheduling.leases.lease_book import LeaseRecord, SampleKey
from echo2swarm.scheduling.leases.lease_rules import DispatchRules, NoWork, WorkRequest
from echo2swarm.scheduling.staleness import Freshness, judge_staleness
from protocols.ids import GroupId, PeerId, PolicyVersion
from protocols.leases import Lease
from protocols.packed import pack_floats, pack_tokens
from protocols.sampling import SamplingParams

MAX_LEASES = 2
_ASK_AGAIN_S = 0.25


@dataclass(frozen=True, slots=True)
class SimPrompt:
    """A prompt of a certain length."""

    index: int
    tokens: bytes


@dataclass(slots=True, kw_only=True)
class SimNode:
    """One node.

    Args:
        name: its peer id.
        rollout_s: seconds that it takes for a completion of usual length.
        fixed_s: seconds for each lease beside that.
        broadcast_s: from publish to applied.
        spread: of the time for one completion, lognormal.
        max_completions: asked for at once.
    """

    name: str
    rollout_s: float
    fixed_s: float = 0.0
    broadcast_s: float = 0.0
    spread: float = 0.0
    max_completions: int = 64
    stops_at_s: float = float("inf")
    """From when on nothing is heard of it."""
    slows_down_at_s: float = float("inf")
    slows_down_by: float = 1.0
    queue: deque[Lease] = field(default_factory=deque)
    is_busy: bool = False
    last_no: NoWork | None = None
    num_trained: int = 0

    @property
    def peer(self) -> PeerId:
        """Its identity."""
        return PeerId(self.name)


class PacingSwarm:
    """A learner and its nodes.

    Args:
        rules: of dispatch.
        nodes: who takes part.
        train_s: seconds for an update.
        seed: of everything random.
        first_step: where the run stands.
        tokens_of: how long a completion of a prompt is; more tokens take more time.
    """

    def __init__(
        self,
        rules: DispatchRules,
        nodes: list[SimNode],
        *,
        train_s: float,
        seed: int = 0,
        first_step: int = 0,
        tokens_of: Callable[[int], int] = lambda _: 8,
    ) -> None:
        self.rules = rules
        self.nodes = nodes
        self.dispatch = Dispatcher(rules, next_step=first_step)
        self.step = first_step
        self.now_s = 0.0
        self.busy_s = 0.0
        self.starts_s: list[float] = []
        self.outcomes: Counter[str] = Counter()
        """What became of every completion that was made, and of dropped ones."""
        self.group_ends: dict[int, str] = {}
        self.leased_groups: set[int] = set()
        self.num_leased = 0
        self.lease_sizes: dict[str, list[int]] = {node.name: [] for node in nodes}
        self.max_outstanding = 0
        self._train_s = train_s
        self._tokens_of = tokens_of
        self._rng = random.Random(seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._is_training = False
        self._published_at_s: dict[int, float] = {}
        self._next_prompt = 0
        self._accepted: Counter[int] = Counter()

    def run(self, num_steps: int, *, limit_s: float = 1e6) -> None:
        """Train so many steps more, or give up."""
        last = self.step + num_steps
        if self._queue:
            self._go_on(last, limit_s)
            return
        self._publish()
        for node in self.nodes:
            self._later(self._rng.uniform(0, _ASK_AGAIN_S), partial(self._poll, node))
        self._go_on(last, limit_s)

    def _go_on(self, last: int, limit_s: float) -> None:
        while self.step < last and self._queue and self.now_s < limit_s:
            self.now_s, _, act = heapq.heappop(self._queue)
            act()

    @property
    def utilisation(self) -> float:
        """The learner's busy share since the second batch."""
        since_s = self.starts_s[1]
        return self._train_s * (len(self.starts_s) - 2) / (self.starts_s[-1] - since_s)

    @property
    def wasted_share(self) -> float:
        """Completions that expired, of all that were made."""
        made = self.outcomes.total()
        return self.outcomes["stale"] / made if made else 0.0

    # The learner.

    def _publish(self) -> None:
        self._published_at_s[self.step] = self.now_s
        self.dispatch.version_published(PolicyVersion(self.step), self.now_s)
        for delay_s in {node.broadcast_s for node in self.nodes}:
            self._later(delay_s, self._wake)
        self._look()

    def _look(self) -> None:
        for lease, state in self.dispatch.leases.overdue(
            now_s=self.now_s, next_step=self.dispatch.next_step
        ):
            for drop in self.dispatch.end_lease(lease, state, self.now_s)[1]:
                self._ended(drop.group_id, drop.reason)
        if self._is_training:
            return
        formed = self.dispatch.form(self.now_s)
        for group in formed.stale:
            self.outcomes["stale"] += len(group.rollouts)
            self._ended(group.group_id, self.dispatch.drop(group.group_id, DropReason.STALE).reason)
        if formed.batch is None:
            return
        formed.batch.assert_fresh(max_staleness=self.rules.max_staleness)
        self.dispatch.take(formed.batch.groups)
        for group in formed.batch.groups:
            self._ended(group.group_id, "trained")
            for rollout in group.rollouts:
                self.outcomes["trained"] += 1
                next(n for n in self.nodes if n.peer == rollout.peer).num_trained += 1
        for drop in self.dispatch.advance(self.step + 1, self.now_s):
            self.outcomes["stale"] += self._accepted[drop.group_id]
            self._ended(drop.group_id, drop.reason)
        self._is_training = True
        self.starts_s.append(self.now_s)
        self._later(self._train_s, self._trained)
        self._later(0.0, self._wake)

    def _trained(self) -> None:
        self._is_training = False
        self.busy_s += self._train_s
        self.step += 1
        if self.step % self.rules.publish_every == 0:
            self._publish()
        self._look()

    def _ended(self, group_id: int, how: str) -> None:
        if group_id in self.group_ends:
            raise AssertionError(f"group {group_id} ended twice")
        self.group_ends[group_id] = how

    # A node.

    def _version_of(self, node: SimNode) -> int | None:
        there = [
            v for v, at_s in self._published_at_s.items() if at_s + node.broadcast_s <= self.now_s
        ]
        return max(there, default=None)

    def _poll(self, node: SimNode) -> None:
        while len(node.queue) + node.is_busy < MAX_LEASES and self._ask(node):
            pass
        self._begin(node)
        self._later(_ASK_AGAIN_S, partial(self._poll, node))

    def _ask(self, node: SimNode) -> bool:
        version = self._version_of(node)
        if version is None or self.now_s >= node.stops_at_s:
            return False
        if wanted := self.dispatch.num_prompts_wanted:
            new = range(self._next_prompt, self._next_prompt + wanted)
            self._next_prompt += wanted
            self.dispatch.add_prompts([SimPrompt(i, pack_tokens([1] * (1 + i % 7))) for i in new])
        ask = WorkRequest(
            peer=node.peer,
            session_id="session-1",
            applied_version=PolicyVersion(version),
            max_completions=node.max_completions,
            broadcast_s=node.broadcast_s,
        )
        reply = self.dispatch.grant(ask, self.now_s)
        self.max_outstanding = max(self.max_outstanding, self.dispatch.num_outstanding)
        if isinstance(reply, NoWork):
            node.last_no = reply
            return False
        node.last_no = None
        node.queue.append(reply)
        self.leased_groups |= {group.group_id for group in reply.groups}
        self.num_leased += reply.num_completions
        self.lease_sizes[node.name].append(reply.num_completions)
        return True

    def _begin(self, node: SimNode) -> None:
        version = self._version_of(node)
        if node.is_busy or not node.queue or version is None:
            return
        if version < node.queue[0].min_version:
            return
        lease = node.queue.popleft()
        node.is_busy = True
        slower = node.slows_down_by if self.now_s >= node.slows_down_at_s else 1.0
        seconds = node.fixed_s
        for group in lease.groups:
            for _ in group.samples:
                tokens = self._tokens_of(group.group_id)
                noise = self._rng.lognormvariate(0, node.spread) if node.spread else 1.0
                seconds += node.rollout_s * slower * noise * tokens / 8
        self._later(seconds, lambda: self._submit(node, lease, version))

    def _submit(self, node: SimNode, lease: Lease, version: int) -> None:
        node.is_busy = False
        if self.now_s >= node.stops_at_s:
            return
        record = self.dispatch.leases.get(lease.lease_id)
        if record is not None:
            for group in lease.groups:
                for sample in group.samples:
                    key = (GroupId(group.group_id), sample.index)
                    self._judge(record, key, version)
        self._look()
        self._wake()

    def _wake(self) -> None:
        # As live, where whoever waits is woken in any order.
        for node in self._rng.sample(self.nodes, len(self.nodes)):
            while len(node.queue) + node.is_busy < MAX_LEASES and self._ask(node):
                pass
            self._begin(node)

    def _judge(self, lease: LeaseRecord, key: SampleKey, version: int) -> None:
        status = self.dispatch.status_for(lease, key)
        fresh = judge_staleness(
            version=version,
            step=self.dispatch.next_step,
            max_staleness=self.rules.max_staleness,
        )
        if status is SampleStatus.OPEN and fresh is Freshness.ADMIT:
            self.dispatch.begin_judging(lease, key)
            tokens = [1] * self._tokens_of(key[0])
            rollout = AcceptedRollout(
                tokens=pack_tokens(tokens),
                logprobs=pack_floats([-1.0] * len(tokens)),
                version=PolicyVersion(version),
                reward=1.0,
                is_truncated=False,
                peer=lease.peer,
            )
            self.dispatch.accept(lease, key, rollout, self.now_s)
            self._accepted[key[0]] += 1
        elif status is SampleStatus.OPEN:
            self.outcomes["stale"] += 1
            drop, _ = self.dispatch.refuse(lease, key, self.now_s)
            if drop is not None:
                self._ended(drop.group_id, drop.reason)
        else:
            self.outcomes["stale" if status is SampleStatus.STALE else status.value] += 1
            self.dispatch.settle(lease, key, self.now_s)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._queue, (self.now_s + seconds, self._num_events, act))


def pacing_rules(
    *,
    groups_per_step: int = 6,
    group_size: int = 4,
    max_staleness: int = 2,
    publish_every: int = 1,
    headroom: float = 0.15,
    lease_prompts: int | None = None,
    is_paced: bool = True,
    lease_timeout_s: float = 120.0,
) -> DispatchRules:
    """Return rules for a run without end."""
    return DispatchRules(
        run_seed=0,
        groups_per_step=groups_per_step,
        group_size=group_size,
        max_staleness=max_staleness,
        publish_every=publish_every,
        headroom=headroom,
        lease_prompts=lease_prompts,
        lease_timeout_s=lease_timeout_s,
        sampling=SamplingParams(temperature=1.0, max_new_tokens=64, stop_token_ids=(7,)),
        num_steps=1_000_000,
        is_paced=is_paced,
    )
