"""Which nodes an evaluation can count on."""

import pytest

from learner.evaluation.evaluators import LONELY_S, Evaluators
from learner.state.node_table import NodeTable
from protocols.heartbeat import Directive, NodeState
from tests.echo2swarm.scheduling.leases.samples import ALICE, BOB
from tests.learner.state.test_node_table import hear, table


def evaluators(nodes: NodeTable, *, max_share: float = 0.5) -> Evaluators:
    found = Evaluators(nodes, max_share=max_share)
    found.add(ALICE)
    return found


@pytest.mark.parametrize(
    ("applied", "version", "are_gone"),
    [(3, 3, False), (4, 3, True), (2, 3, True), (2, 5, False), (None, 5, False), (4, None, False)],
    ids=["has it", "is past it", "has an older", "will get it", "has none", "any will do"],
)
def test_a_version_is_lost_once_nobody_has_it_or_will(
    applied: int | None, version: int | None, *, are_gone: bool
) -> None:
    nodes = table()
    hear(nodes, 0.0, applied=applied)
    found = evaluators(nodes)

    assert not found.are_gone(version, newest=5, now_s=0.0), "not at once: somebody may come back"
    assert found.are_gone(version, newest=5, now_s=LONELY_S) == are_gone


def test_whoever_is_back_in_time_was_never_gone() -> None:
    nodes = table()
    found = evaluators(nodes)
    found.are_gone(3, newest=5, now_s=0.0)
    hear(nodes, 20.0, applied=3)
    found.are_gone(3, newest=5, now_s=20.0)
    hear(nodes, 25.0, applied=4)

    assert not found.are_gone(3, newest=5, now_s=LONELY_S + 1)


def test_a_node_that_can_not_keep_a_version_does_not_count_nor_one_that_left() -> None:
    nodes = table()
    hear(nodes, 0.0, BOB, applied=3)
    hear(nodes, 0.0, ALICE, applied=3)
    hear(nodes, 1.0, ALICE, applied=3, state=NodeState.LEFT)
    found = evaluators(nodes)
    found.forget_absent()
    hear(nodes, 2.0, ALICE, applied=3)
    found.are_gone(3, newest=3, now_s=2.0)

    assert found.are_gone(3, newest=3, now_s=2.0 + LONELY_S)


def test_training_keeps_its_share_of_the_active_nodes_until_it_is_over() -> None:
    nodes = table()
    for peer in (ALICE, BOB):
        hear(nodes, 0.0, peer)
    for node in nodes:
        node.directive = Directive.ACTIVE
    found = evaluators(nodes)

    assert found.max_at_once(is_training=True) == 1
    assert found.max_at_once(is_training=False) == 2
    assert evaluators(table()).max_at_once(is_training=True) == 1
