"""A whole swarm: puts the parts together, lets time pass, and says what came of it."""

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.groups import DropReason
from echo2swarm.scheduling.leases.lease_book import LeaseState
from echo2swarm.scheduling.leases.lease_rules import DispatchRules
from echo2swarm.scheduling.selection.speed import Presence
from echo2swarm.simulate.accounts import Accounts, KindCount, StepEntry
from echo2swarm.simulate.activation import Activation
from echo2swarm.simulate.broadcast import BroadcastModel
from echo2swarm.simulate.chance import Answers
from echo2swarm.simulate.clock import EventClock
from echo2swarm.simulate.learner import SimulatedLoop
from echo2swarm.simulate.lease_desk import SimulatedLeaseDesk
from echo2swarm.simulate.measures import Measures
from echo2swarm.simulate.members import SimulatedMember
from echo2swarm.simulate.node import SimNode, SimulatedSubmission
from echo2swarm.simulate.population import Population
from echo2swarm.simulate.results import SimulationResult
from echo2swarm.simulate.scenario import check_scenario
from echo2swarm.simulate.summary import summarize_simulation
from echo2swarm.simulate.tables import Scenario
from protocols.ids import PeerId
from protocols.sampling import SamplingParams

_MISSED_HEARTBEATS = 3
_SILENCE_MARGIN_S = 4.0
_LOOKS_PER_STEP = 32
_MIN_LOOK_S, _MAX_LOOK_S = 0.05, 5.0
"""How often leases are looked at whose time may be up, and questions that have to wait."""

OnStep = Callable[[StepEntry], None]


def simulate_swarm(scenario: Scenario, *, on_step: OnStep = lambda _: None) -> SimulationResult:
    """Return what becomes of a swarm; the same scenario gives an equal result.

    Args:
        scenario: which swarm.
        on_step: told of every update, as it is done.

    Raises:
        ConfigError: the scenario contradicts itself.
        AssertionError: a promise was broken: a rollout was trained on that was too old, or a
            prompt was lost or trained on twice. That is a bug of the swarm's.
    """
    checked = check_scenario(scenario)
    with _without_collector():
        return _Swarm(checked, on_step).run()


@contextmanager
def _without_collector() -> Iterator[None]:
    """Spare the search for cycles: nearly all that is made lives as long as the simulation.

    It is a fifth of the time with thousands of nodes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Swarm:
    """The learner's side of what nodes say, and everything behind it."""

    def __init__(self, scenario: Scenario, on_step: OnStep) -> None:
        self._scenario = scenario
        self._on_step = on_step
        luck = partial(_luck, scenario)
        self._engine = EventClock()
        self._members: dict[PeerId, SimulatedMember] = {}
        self._accounts = Accounts(kinds={kind.name: KindCount() for kind in scenario.nodes})
        self._measures = Measures()
        self._dispatcher = Dispatcher(_rules(scenario))
        self._refusal_rng = luck("refusals")
        self._desk = SimulatedLeaseDesk(
            self._engine,
            self._dispatcher,
            members=self._members,
            accounts=self._accounts,
            measures=self._measures,
            prompt_tokens=scenario.answers.prompt_tokens,
            equal_share=scenario.answers.equal_share,
            judge_luck=self._is_refused,
            on_ready=self._look,
            rng=luck("order"),
        )
        self._broadcast = BroadcastModel(
            scenario.broadcast,
            upload_mbit=scenario.learner.upload_mbit,
            rng=luck("broadcast"),
        )
        self._activation = Activation(
            scenario,
            self._engine,
            members=self._members,
            accounts=self._accounts,
            measures=self._measures,
            broadcast=self._broadcast,
            rng=luck("heartbeats"),
            on_activated=self._activated,
        )
        self._loop = SimulatedLoop(
            scenario,
            self._engine,
            self._dispatcher,
            self._desk,
            accounts=self._accounts,
            measures=self._measures,
            rng=luck("training"),
            broadcast=self._send_version,
            describe=self._describe,
            on_end=self._engine.stop,
        )
        self._population = Population(
            scenario,
            self._engine,
            self,
            answers=Answers(scenario.answers, seed=scenario.run.seed),
            rng=luck("nodes"),
            on_new=self._meet,
            on_price=self._activation.price_changed,
            on_vanished=self._vanished,
        )
        self._newest_version: int | None = None

    def _is_refused(self, node: SimNode) -> bool:
        share = node.kind.refused_share
        return share > 0 and self._refusal_rng.random() < share

    def run(self) -> SimulationResult:
        self._population.start()
        self._loop.start()
        self._activation.start()
        self._engine.after(0.0, self._watch)
        for event in self._scenario.events:
            if event.kind == "learner_outage":
                self._engine.at(event.at_s, self._loop.go_away, event.for_s)
        self._engine.run()
        return self._close()

    # What nodes tell; see LearnerSide.

    @property
    def step(self) -> int:
        """Updates done."""
        return self._loop.step

    @property
    def back_at_s(self) -> float:
        """When the learner can be reached again."""
        return self._loop.back_at_s

    def joined(self, node: SimNode) -> None:
        """A node is here, for the first time or again."""
        member = self._members[node.peer]
        self._desk.end_all_of(node.peer)
        self._activation.is_gone(member)
        member.session, member.joined_at_s = node.session, self._engine.now_s
        member.is_present, member.applied_version = True, None
        member.presence.set_here(True, self._engine.now_s)
        if self._newest_version is not None:
            self._offer(node, self._newest_version, self._broadcast.to_one_s(node))
        self._activation.news()

    def left(self, node: SimNode) -> None:
        """A node says goodbye."""
        member = self._members[node.peer]
        self._gone(member)
        self._desk.end_all_of(node.peer)
        self._activation.is_gone(member)
        self._activation.news()
        self._desk.serve_waiting()
        self._end_if_extinct()

    def applied(self, node: SimNode, version: int) -> None:
        """A node samples with a version from now on."""
        member = self._members[node.peer]
        is_first = member.applied_version is None
        member.applied_version = version
        published_at_s = self._loop.published_at_s.get(version)
        if published_at_s is not None:
            now_s = self._engine.now_s
            took_s = member.broadcasts.add(
                joined_at_s=member.joined_at_s, published_at_s=published_at_s, applied_at_s=now_s
            )
            if took_s is not None:
                self._measures.broadcast_s.add(took_s, now_s)
                self._accounts.broadcasts_s.append(took_s)
        self._desk.applied(node)
        if is_first:
            self._activation.news()

    def asked(self, node: SimNode, version: int, ask_round: int) -> None:
        """A node asks for work."""
        self._desk.asked(node, version, ask_round)

    def given_back(self, node: SimNode, lease_id: str) -> None:
        """A node will do no more of a lease."""
        self._desk.given_back(node, lease_id)

    def submitted(self, node: SimNode, work: SimulatedSubmission) -> None:
        """A node hands results in."""
        self._desk.submitted(node, work)

    # Inside.

    def _look(self) -> None:
        self._loop.look()

    def _meet(self, node: SimNode) -> None:
        self._accounts.kind_of[node.peer] = node.kind.name
        claimed = node.kind.claimed_rollouts_per_s
        truth = node.tokens_per_s / self._scenario.answers.mean_tokens
        self._members[node.peer] = SimulatedMember(
            node=node,
            session=0,
            joined_at_s=0.0,
            claimed_rollouts_per_s=truth if claimed is None else claimed,
            presence=Presence(self._engine.now_s),
        )

    def _vanished(self, node: SimNode) -> None:
        silent_after_s = _MISSED_HEARTBEATS * self._scenario.learner.heartbeat_s + _SILENCE_MARGIN_S
        self._engine.after(silent_after_s, self._miss, node, node.session)
        self._end_if_extinct()

    def _gone(self, member: SimulatedMember) -> None:
        member.is_present = False
        member.presence.set_here(False, self._engine.now_s)

    def _miss(self, node: SimNode, session: int) -> None:
        """Notice that a node fell silent."""
        if self._loop.is_away:
            self._engine.at(self._loop.back_at_s + _SILENCE_MARGIN_S, self._miss, node, session)
            return
        member = self._members[node.peer]
        if node.session != session or not member.is_present:
            return
        self._gone(member)
        self._desk.end_all_of(node.peer, LeaseState.NODE_LOST)
        self._activation.is_gone(member)
        self._activation.news()
        self._desk.serve_waiting()

    def _end_if_extinct(self) -> None:
        if self._population.is_extinct and self._loop.is_waiting:
            self._engine.stop()

    def _watch(self) -> None:
        look_s = self._scenario.learner.train_s / _LOOKS_PER_STEP
        self._engine.after(min(_MAX_LOOK_S, max(_MIN_LOOK_S, look_s)), self._watch)
        if self._loop.is_away:
            return
        self._desk.end_overdue()
        self._desk.serve_waiting()
        self._end_if_extinct()

    def _send_version(self, version: int) -> None:
        self._newest_version = version
        to_standby = self._scenario.broadcast.to_standby
        nodes = [
            member.node
            for member in self._members.values()
            if member.node.is_up and member.is_present and (to_standby or member.is_active)
        ]
        for node, takes_s in zip(nodes, self._broadcast.to_all_s(nodes), strict=True):
            self._offer(node, version, takes_s)

    def _offer(self, node: SimNode, version: int, takes_s: float) -> None:
        fills_line = self._scenario.broadcast.fixed_s is None
        node.offered(node.session, version, takes_s, fills_line=fills_line)

    def _activated(self, node: SimNode) -> None:
        newest = self._newest_version
        if newest is None or not node.is_up or node.is_fetching:
            return
        if node.held_version is None or node.held_version < newest:
            self._offer(node, newest, self._broadcast.to_one_s(node))

    def _describe(self, entry: StepEntry) -> None:
        now_s = self._engine.now_s
        self._activation.close()
        entry.num_active = self._activation.num_active
        entry.num_present = sum(member.is_present for member in self._members.values())
        entry.num_in_flight = self._dispatcher.leases.num_unsettled
        entry.supplied_rollouts_per_s = self._measures.accepted.per_s(now_s)
        entry.needed_rollouts_per_s = self._activation.needed_rollouts_per_s
        entry.usd = self._accounts.node_usd + self._accounts.learner_usd
        self._on_step(entry)

    def _close(self) -> SimulationResult:
        self._activation.close()
        if self._accounts.num_leased != self._dispatcher.num_outstanding:
            raise AssertionError(
                f"{self._accounts.num_leased} prompts are leased, the dispatcher knows "
                f"{self._dispatcher.num_outstanding}"
            )
        is_finished = self._loop.step >= self._scenario.run.num_steps
        ended = "all steps are done" if is_finished else self._what_it_lacked()
        supply = sum(m.work.per_s() or 0.0 for m in self._members.values() if m.is_active)
        self._desk.drop_all(DropReason.RUN_ENDED)
        if self._accounts.num_leased:
            raise AssertionError(f"{self._accounts.num_leased} prompts were lost")
        return summarize_simulation(
            self._scenario,
            self._accounts,
            is_finished=is_finished,
            ended=ended,
            duration_s=self._engine.now_s,
            rollouts_per_s=supply,
            num_events=self._engine.num_events,
        )

    def _what_it_lacked(self) -> str:
        """Return why the learner got no further, in one sentence."""
        step, ready = self._loop.step, len(self._dispatcher.ready)
        wanted = self._scenario.learner.prompts_per_step
        what = f"stuck at step {step} with {ready} of {wanted} groups"
        if self._population.is_extinct:
            return f"{what}: no node is left, and none will come"
        num_up, num_active = self._population.num_up, self._activation.num_active
        if not num_up:
            return f"{what}: no node is there"
        if not num_active:
            whys = {member.why for member in self._members.values() if member.is_present}
            return f"{what}: none of {num_up} nodes is activated ({'; '.join(sorted(whys)[:2])})"
        return (
            f"{what} after {self._scenario.run.give_up_s:g} s, with {num_active} of {num_up} nodes "
            f"active, {self._desk.num_waiting} questions for work waiting and "
            f"{self._dispatcher.num_outstanding} groups outstanding"
        )


def _luck(scenario: Scenario, what: str) -> random.Random:
    """Return a source of chance for one purpose: what one part draws changes no other's."""
    return random.Random(f"{scenario.run.seed}/{what}")  # noqa: S311 - nobody is to be surprised


def _rules(scenario: Scenario) -> DispatchRules:
    learner = scenario.learner
    return DispatchRules(
        run_seed=scenario.run.seed,
        groups_per_step=learner.prompts_per_step,
        group_size=learner.group_size,
        max_staleness=learner.max_staleness,
        publish_every=learner.publish_every,
        headroom=learner.headroom,
        lease_prompts=learner.lease_prompts,
        lease_timeout_s=learner.lease_timeout_s,
        sampling=SamplingParams(
            temperature=1.0,
            max_new_tokens=max(1, int(scenario.answers.max_tokens)),
            stop_token_ids=(),
        ),
        num_steps=scenario.run.num_steps,
        max_replaced=scenario.max_replaced,
    )
