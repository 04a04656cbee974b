"""What the status says of supply, pace and cost: from measurements only."""

import random

import pytest

from echo2swarm.plan.advice import advise
from echo2swarm.scheduling.selection import NodeOffer
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.rates import LearnerPhase, Timeline
from echo2swarm.weights.transfer.traffic import Traffic
from learner.config import RolloutConfig, SelectorConfig
from learner.membership.activator import Activator
from learner.state.link_table import LinkTable
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from learner.status.outlook import outlook_of, situation_of
from protocols.heartbeat import Directive
from protocols.ids import PeerId
from tests.echo2swarm.scheduling.leases.samples import ALICE, BOB
from tests.learner.state.test_node_table import hear

LEARNER = PeerId("12D3KooWLearner")


def progress() -> LearnerProgress:
    table = RolloutConfig(prompts_per_step=4, group_size=4, max_staleness=2, headroom=0.1)
    return LearnerProgress(
        step=0, num_steps=10, started_s=0.0, rollouts=table, timeline=Timeline(0.0)
    )


def offer(key: str, *, is_active: bool = True, rollouts_per_s: float | None = 1.0) -> NodeOffer:
    return NodeOffer(
        key=key, usd_per_hour=1.0, rollouts_per_s=rollouts_per_s, num_active=int(is_active)
    )


def test_before_anything_was_measured_nothing_is_claimed() -> None:
    found = outlook_of(progress(), [], 0.0)

    assert found.train is None
    assert (found.busy_share, found.step_s, found.binds) == (None, None, "")
    assert (found.capacity_rollouts_per_s, found.usd_per_million_tokens) == (0, None)


def test_supply_pace_and_cost_follow_from_the_nodes_that_are_active() -> None:
    made = progress()
    made.train_s.add(4.0, 5.0)
    made.trained_tokens.add(72_000, 5.0)
    offers = [offer("a"), offer("b", is_active=False), offer("c", rollouts_per_s=None)]

    found = outlook_of(made, offers, 10.0)

    assert found.train is not None
    assert (found.train.p50, found.train.num_samples) == (4.0, 1)
    assert found.capacity_rollouts_per_s == 1.0
    assert found.required_rollouts_per_s == pytest.approx(4.0)
    assert found.step_s == pytest.approx(16.0)
    assert found.busy_share == pytest.approx(0.25)
    assert found.binds == "supply"
    assert found.min_staleness == 1
    assert found.usd_per_hour == 2.0
    assert found.usd_per_million_tokens == pytest.approx(2 / 3600 / 7200 * 1e6)


def test_where_no_supply_is_enough_none_is_required() -> None:
    made = progress()
    made.train_s.add(4.0, 5.0)
    made.broadcast_s.add(30.0, 5.0)

    found = outlook_of(made, [offer("a", rollouts_per_s=9.0)], 10.0)

    assert found.required_rollouts_per_s is None
    assert found.binds == "latency"


async def test_advice_is_made_of_nodes_and_pace() -> None:
    made = progress()
    made.timeline.enter(LearnerPhase.TRAINING, 0.0)
    made.timeline.enter(LearnerPhase.WAITING, 4.0)
    made.train_s.add(4.0, 4.0)
    nodes = NodeTable(silent_after_s=1000.0)
    for peer in (ALICE, BOB):
        hear(nodes, 0.0, peer)
        nodes.working(peer, has_lease=True, now_s=0.0)
        nodes.accepted(peer, 100, 100.0)
        node = nodes.get(peer)
        assert node is not None
        node.directive = Directive.ACTIVE
    activator = Activator(
        nodes=nodes,
        links=LinkTable(LEARNER, Traffic(), random.Random(0)),
        progress=made,
        selector=SelectorConfig(),
        changes=ChangeEvent(),
    )

    situation = situation_of(made, nodes, activator, 100.0)
    said = advise(situation)

    assert (situation.num_nodes, len(situation.offers)) == (2, 2)
    assert said.startswith("learner 4 % busy; short ")
    assert said.endswith(" like name")


async def test_without_nodes_advice_begins_with_the_ticket() -> None:
    made, nodes = progress(), NodeTable(silent_after_s=1000.0)
    activator = Activator(
        nodes=nodes,
        links=LinkTable(LEARNER, Traffic(), random.Random(0)),
        progress=made,
        selector=SelectorConfig(),
        changes=ChangeEvent(),
    )

    assert "ticket" in advise(situation_of(made, nodes, activator, 1.0))
