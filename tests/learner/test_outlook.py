"""What the status says of supply, pace and cost: from measurements only."""

import random

import pytest

from echo2swarm.planning.advice import advise
from echo2swarm.rates import Phase, Timeline
from echo2swarm.weights.traffic import Traffic
from learner.config import RolloutTable
from learner.nodes.links import Links
from learner.nodes.node_table import NodeTable
from learner.outlook import outlook_of, situation_of
from learner.progress import Progress
from protocols.activation import Directive, NodeState
from protocols.ids import PeerId
from tests.echo2swarm.dispatch.samples import ALICE, BOB
from tests.learner.nodes.test_node_table import hear

LEARNER = PeerId("12D3KooWLearner")


def progress() -> Progress:
    table = RolloutTable(prompts_per_step=4, group_size=4, max_staleness=2, headroom=0.1)
    return Progress(step=0, num_steps=10, started_s=0.0, rollouts=table, timeline=Timeline(0.0))


def table_with(*peers: PeerId, rollouts_per_s: float) -> NodeTable:
    """Nodes that are active and delivered at this rate, for 1 USD/h each."""
    nodes = NodeTable(silent_after_s=1000.0)
    for peer in peers:
        hear(nodes, 0.0, peer)
        nodes.working(peer, has_lease=True, now_s=0.0)
        nodes.accepted(peer, round(10 * rollouts_per_s), 10.0)
        node = nodes.get(peer)
        assert node is not None
        node.directive = Directive.ACTIVE
    return nodes


def test_before_anything_was_measured_nothing_is_claimed() -> None:
    found = outlook_of(progress(), NodeTable(silent_after_s=10.0), 0.0)

    assert found.train is None
    assert (found.busy_share, found.step_s, found.binds) == (None, None, "")
    assert (found.capacity_rollouts_per_s, found.usd_per_million_tokens) == (0, None)


def test_supply_pace_and_cost_follow_from_the_nodes_that_are_active() -> None:
    made = progress()
    made.train_s.add(4.0, 5.0)
    made.trained_tokens.add(72_000, 5.0)
    nodes = table_with(ALICE, BOB, rollouts_per_s=1.0)
    bob = nodes.get(BOB)
    assert bob is not None
    bob.state = NodeState.DRAINING

    found = outlook_of(made, nodes, 10.0)

    assert found.train is not None
    assert (found.train.p50, found.train.num_samples) == (4.0, 1)
    assert found.capacity_rollouts_per_s == pytest.approx(1.0)
    assert found.required_rollouts_per_s == pytest.approx(4.0)
    assert found.step_s == pytest.approx(16.0)
    assert found.busy_share == pytest.approx(0.25)
    assert found.binds == "supply"
    assert found.min_staleness == 1
    assert found.usd_per_hour == 1.0
    assert found.usd_per_million_tokens == pytest.approx(1 / 3600 / 7200 * 1e6)


def test_where_no_supply_is_enough_none_is_required() -> None:
    made = progress()
    made.train_s.add(4.0, 5.0)
    made.broadcast_s.add(30.0, 5.0)

    assert (
        outlook_of(made, table_with(ALICE, rollouts_per_s=9.0), 10.0).required_rollouts_per_s
        is None
    )


def test_advice_is_made_of_nodes_links_and_pace() -> None:
    made = progress()
    made.timeline.enter(Phase.TRAINING, 0.0)
    made.timeline.enter(Phase.WAITING, 4.0)
    made.train_s.add(4.0, 4.0)
    links = Links(LEARNER, Traffic(), random.Random(0))

    said = advise(situation_of(made, table_with(ALICE, BOB, rollouts_per_s=1.0), links, 8.0))

    assert said == "learner 50 % busy; short 2.40 rollouts/s; add 3 nodes like name"
