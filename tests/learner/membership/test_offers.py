"""What the selector is told of nodes: measured, or claimed within reason."""

import random

import pytest

from echo2swarm.scheduling.selection import Limits, NodeOffer
from echo2swarm.weights.transfer.traffic import Traffic
from learner.config import SelectorConfig
from learner.membership.offers import limits_of, offers_of, speeds_of
from learner.state.link_table import LinkTable
from learner.state.node_table import NodeTable
from protocols.advert import NodeAdvert
from protocols.heartbeat import Directive, Heartbeat, NodeState
from protocols.ids import PeerId
from tests.echo2swarm.scheduling.leases.samples import ALICE, BOB

CAROL = PeerId("carol")
LINKS = LinkTable(PeerId("learner"), Traffic(), random.Random(0))


def table() -> NodeTable:
    return NodeTable(silent_after_s=1e9)


def hear(
    nodes: NodeTable,
    peer: PeerId,
    now_s: float,
    *,
    usd: float = 1.0,
    state: NodeState = NodeState.STANDBY,
    applied: int | None = 0,
    tokens_per_s: float | None = None,
) -> None:
    advert = NodeAdvert("run", peer, "node", 1, (), "name", "engine", "cpu", usd, "test")
    beat = Heartbeat(
        "run", "session-1", b"", state, applied, applied, 0, 0, 0, 0, 0.0, (), (), tokens_per_s
    )
    nodes.heartbeat(peer, beat, advert, now_s)


def work(nodes: NodeTable, peer: PeerId, *, per_s: float, now_s: float = 100.0) -> None:
    nodes.working(peer, has_lease=True, now_s=0.0)
    for second in range(10, int(now_s) + 1, 10):
        nodes.accepted(peer, round(10 * per_s), float(second), num_tokens=round(100 * per_s))
    nodes.working(peer, has_lease=False, now_s=now_s)


def offers(nodes: NodeTable, now_s: float, *, bound_s: float | None = None) -> dict[str, NodeOffer]:
    found = offers_of(nodes, LINKS, now_s, bound_s=bound_s, usual_s=5.0)
    return {offer.key: offer for offer in found}


def test_a_node_is_offered_at_its_price_with_what_was_measured() -> None:
    nodes = table()
    hear(nodes, ALICE, 0.0, usd=0.7)
    work(nodes, ALICE, per_s=2.0)
    hear(nodes, BOB, 90.0, applied=None)
    made = offers(nodes, 100.0)

    assert made[ALICE].usd_per_hour == 0.7
    assert made[ALICE].rollouts_per_s == pytest.approx(2.0)
    assert (made[ALICE].is_ready, made[BOB].is_ready) == (True, False)
    assert made[BOB].rollouts_per_s is None


def test_the_speed_of_one_that_left_stays_known_and_a_claim_alone_does_not() -> None:
    nodes = table()
    for peer in (ALICE, BOB):
        hear(nodes, peer, 0.0, tokens_per_s=100.0)
    work(nodes, ALICE, per_s=2.0)
    for peer in (ALICE, BOB):
        hear(nodes, peer, 101.0, state=NodeState.LEFT, tokens_per_s=100.0)
    found = speeds_of(nodes, 110.0)

    assert found[ALICE].rollouts_per_s == pytest.approx(2.0)
    assert BOB not in found


def test_one_that_drains_or_is_gone_is_not_offered() -> None:
    nodes = table()
    hear(nodes, ALICE, 0.0, state=NodeState.DRAINING)
    hear(nodes, BOB, 0.0)
    hear(nodes, BOB, 1.0, state=NodeState.LEFT)

    assert offers(nodes, 2.0) == {}


def test_a_claim_counts_until_there_is_work_and_for_no_more_than_the_fastest_measured() -> None:
    nodes = table()
    hear(nodes, ALICE, 0.0)
    hear(nodes, BOB, 0.0, tokens_per_s=5.0)
    hear(nodes, CAROL, 0.0, tokens_per_s=1e9)
    assert speeds_of(nodes, 0.0) == {}  # Nobody knows how long a rollout is.
    work(nodes, ALICE, per_s=2.0)
    speeds = speeds_of(nodes, 100.0)

    assert not speeds[ALICE].is_prior
    # Ten tokens a rollout.
    assert (speeds[BOB].rollouts_per_s, speeds[BOB].is_prior) == (0.5, True)
    assert speeds[CAROL].rollouts_per_s == pytest.approx(2.0)


def test_a_liar_is_worth_what_it_delivers() -> None:
    nodes = table()
    hear(nodes, ALICE, 0.0)
    hear(nodes, BOB, 0.0, tokens_per_s=1e9)
    work(nodes, ALICE, per_s=2.0)
    before = offers(nodes, 100.0)[BOB].rollouts_per_s
    work(nodes, BOB, per_s=0.1)

    assert before == pytest.approx(2.0)
    assert offers(nodes, 100.0)[BOB].rollouts_per_s == pytest.approx(0.1)


def test_who_was_just_switched_may_not_be_switched_again() -> None:
    nodes = table()
    hear(nodes, ALICE, 0.0)
    node = nodes.get(ALICE)
    assert node is not None
    assert offers(nodes, 0.0)[ALICE].may_start
    node.direct(Directive.ACTIVE, "active", 10.0)
    # Twice five seconds, until its own start-up was seen.
    assert [offers(nodes, t)[ALICE].may_stop for t in (15.0, 21.0)] == [False, True]
    nodes.accepted(ALICE, 1, 30.0)
    assert node.startup_s == 20.0
    assert [offers(nodes, t)[ALICE].may_stop for t in (49.0, 51.0)] == [False, True]
    node.direct(Directive.STANDBY, "standby", 60.0)
    assert [offers(nodes, t)[ALICE].may_start for t in (99.0, 101.0)] == [False, True]


def test_what_links_do_not_explain_of_a_broadcast_is_loading() -> None:
    nodes = table()
    for peer in (ALICE, BOB, CAROL):
        hear(nodes, peer, 0.0)
    nodes.published(1, 10.0)
    hear(nodes, ALICE, 20.0, applied=1)
    hear(nodes, BOB, 12.0, applied=1)
    made = offers(nodes, 20.0, bound_s=4.0)

    assert made[ALICE].load_s == pytest.approx(10 - 1.15 * 4)
    assert made[BOB].load_s == 0.0
    assert made[CAROL].load_s == pytest.approx((10 - 4.6) / 2)
    assert offers(nodes, 20.0)[ALICE].load_s == 0.0


def test_a_node_that_is_often_away_is_worth_less() -> None:
    nodes = NodeTable(silent_after_s=1.0)
    hear(nodes, ALICE, 0.0)
    work(nodes, ALICE, per_s=2.0)
    nodes.lose_silent(100.0)
    hear(nodes, ALICE, 800.0)
    made = offers(nodes, 800.0)[ALICE]

    assert made.rollouts_per_s == pytest.approx(2.0 * 700 / 1400)
    assert made.rollouts_per_s_std > 0.9


def test_limits_are_those_of_the_file() -> None:
    table = SelectorConfig(max_nodes=3, max_usd_per_hour=2.0, max_node_usd_per_hour=1.0)

    assert limits_of(table) == Limits(max_nodes=3, max_usd_per_hour=2.0, max_node_usd_per_hour=1.0)
