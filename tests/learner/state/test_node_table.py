"""One node per identity, measured and not believed."""

import pytest

from learner.ledger.resume import NodeTotals
from learner.state.link_table import LinkStatus
from learner.state.node import NodeChange
from learner.state.node_table import TWIN_WARNING, NodeTable
from protocols.advert import NodeAdvert
from protocols.heartbeat import Heartbeat, NodeState, PeerReport
from protocols.ids import PeerId
from protocols.reasons import Reason
from tests.echo2swarm.scheduling.leases.samples import ALICE, BOB

CAROL = PeerId("carol")


def advert(peer: PeerId = ALICE) -> NodeAdvert:
    return NodeAdvert("run", peer, "node", 1, (), "name", "engine", "cpu", 1.0, "test")


def beat(
    *,
    session: str = "session-1",
    state: NodeState = NodeState.ACTIVE,
    applied: int | None = None,
) -> Heartbeat:
    return Heartbeat("run", session, b"", state, applied, applied, 0, 0, 0, 0)


def hear(table: NodeTable, now_s: float, peer: PeerId = ALICE, **fields: object) -> NodeChange:
    return table.heartbeat(peer, beat(**fields), advert(peer), now_s)  # type: ignore[arg-type]


def table() -> NodeTable:
    return NodeTable(silent_after_s=10.0)


def test_a_node_that_comes_back_as_another_process_is_the_same_node() -> None:
    nodes = table()
    first = hear(nodes, 0.0)
    again = hear(nodes, 1.0)
    other = hear(nodes, 2.0, session="session-2")

    assert (first.is_new_node, again, other.is_new_session) == (True, NodeChange(), True)
    assert len(list(nodes)) == 1
    assert nodes.is_session(ALICE, "session-2")
    assert not nodes.is_session(ALICE, "session-1")


def test_silence_makes_a_node_lost_once_and_a_heartbeat_brings_it_back() -> None:
    nodes = table()
    hear(nodes, 0.0)

    assert nodes.next_silence_s() == 10.0
    assert nodes.lose_silent(10.0) == []
    assert [node.peer for node in nodes.lose_silent(10.1)] == [ALICE]
    assert nodes.lose_silent(11.0) == []
    assert not nodes.is_session(ALICE, "session-1")
    hear(nodes, 12.0)
    assert nodes.is_session(ALICE, "session-1")


def test_a_node_that_says_goodbye_is_gone_at_once() -> None:
    nodes = table()
    hear(nodes, 0.0, applied=1)
    news = hear(nodes, 1.0, state=NodeState.LEFT, applied=1)
    again = hear(nodes, 1.5, state=NodeState.LEFT, applied=1)

    assert news.has_left
    assert news.applied_version is None
    assert again.applied_version is None
    assert nodes.present == []


def test_broadcast_is_from_publish_to_the_first_heartbeat_that_shows_the_version() -> None:
    nodes = table()
    hear(nodes, 0.0, applied=0)
    nodes.published(1, 5.0)
    shown = hear(nodes, 7.5, applied=1)
    later = hear(nodes, 9.0, applied=1)

    assert (shown.applied_version, shown.broadcast_s) == (1, 2.5)
    assert (later.applied_version, later.broadcast_s) == (None, None)


def test_a_node_that_an_evaluation_holds_back_measures_no_broadcast_of_that_time() -> None:
    nodes = table()
    hear(nodes, 0.0, applied=0)
    nodes.published(1, 1.0)
    nodes.held_back(ALICE, is_held=True, now_s=2.0)
    nodes.published(2, 3.0)
    held = hear(nodes, 4.0, applied=1)
    nodes.held_back(ALICE, is_held=False, now_s=5.0)
    nodes.held_back(ALICE, is_held=False, now_s=9.0)
    nodes.published(3, 6.0)
    caught_up = hear(nodes, 7.0, applied=2)
    free = hear(nodes, 8.0, applied=3)

    assert (held.broadcast_s, caught_up.broadcast_s, free.broadcast_s) == (None, None, 2.0)
    node = nodes.get(ALICE)
    assert node is not None
    assert (len(node.broadcasts), node.broadcasts.last_s) == (1, 2.0)
    nodes.held_back(BOB, is_held=True, now_s=1.0)  # whom nobody knows


def test_a_node_that_joins_later_measures_no_broadcast() -> None:
    nodes = table()
    nodes.published(1, 5.0)

    assert hear(nodes, 100.0, applied=1).broadcast_s is None


def test_nobody_can_report_itself_or_a_stranger_and_no_report_counts_without_end() -> None:
    nodes = table()
    hear(nodes, 0.0, ALICE)
    hear(nodes, 0.0, BOB)
    nodes.report(ALICE, PeerReport(ALICE, Reason.BAD_CHUNK_HASH, 1))
    nodes.report(ALICE, PeerReport(PeerId("stranger"), Reason.BAD_CHUNK_HASH, 1))
    nodes.report(ALICE, PeerReport(BOB, Reason.BAD_CHUNK_HASH, 2**30))
    alice, bob = nodes.get(ALICE), nodes.get(BOB)

    assert alice is not None
    assert bob is not None
    assert alice.refusals == {}
    assert bob.refusals == {Reason.BAD_CHUNK_HASH: 1000}


def test_the_length_of_rollouts_follows_what_is_accepted() -> None:
    nodes = table()
    hear(nodes, 0.0)
    unknown = nodes.tokens_per_rollout
    nodes.accepted(ALICE, 10, 1.0, num_tokens=100)
    at_first = nodes.tokens_per_rollout
    for second in range(2, 1000):
        nodes.accepted(ALICE, 10, float(second), num_tokens=500)
    later = nodes.tokens_per_rollout

    assert (unknown, at_first) == (None, 10.0)
    assert later is not None
    assert 48 < later < 50


def test_everybody_who_comes_or_goes_or_changes_state_is_a_new_epoch() -> None:
    nodes = table()
    epochs = [nodes.epoch]
    for seconds, fields in (
        (0.0, {}),
        (1.0, {"state": NodeState.DRAINING}),
        (2.0, {"state": NodeState.DRAINING, "session": "session-2"}),
        (3.0, {"state": NodeState.LEFT, "session": "session-2"}),
    ):
        hear(nodes, seconds, **fields)
        epochs.append(nodes.epoch)
    hear(nodes, 4.0, BOB)
    hear(nodes, 5.0, BOB)
    epochs.append(nodes.epoch)
    nodes.lose_silent(50.0)
    epochs.append(nodes.epoch)

    assert epochs == sorted(set(epochs))


def test_one_who_is_forgotten_to_make_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.state.node_admission.MAX_NODES", 2)
    nodes = table()
    evicted = [hear(nodes, float(i), PeerId(f"peer-{i}")).evicted for i in range(2)]
    nodes.lose_silent(10.5)
    evicted.append(hear(nodes, 10.5, PeerId("peer-2")).evicted)

    assert evicted == [None, None, "peer-0"]
    assert [node.peer for node in nodes] == ["peer-1", "peer-2"]


def test_a_process_that_goes_on_after_a_later_one_began_is_a_twin_and_changes_nothing() -> None:
    nodes = table()
    hear(nodes, 0.0, session="session-1", applied=1)
    hear(nodes, 1.0, session="session-2", applied=2)
    node = nodes.get(ALICE)
    assert node is not None

    late = hear(nodes, 1.1, session="session-1", applied=1)
    assert (late.is_superseded, late.is_new_twin) == (True, False)
    assert not nodes.has_twin(node, 1.1)
    told = [hear(nodes, 3.0 + i, session="session-1", applied=1).is_new_twin for i in range(3)]

    assert told == [True, False, False]
    assert nodes.has_twin(node, 5.0)
    assert nodes.is_session(ALICE, "session-2")
    assert node.applied_version == 2
    line = nodes.status(node, num_in_flight=0, link=LinkStatus(), now_s=5.0)
    assert line.warning == TWIN_WARNING


def test_a_twin_is_forgotten_when_it_is_silent_and_takes_over_when_the_other_is() -> None:
    nodes = table()
    hear(nodes, 0.0, session="session-1")
    hear(nodes, 1.0, session="session-2")
    for i in range(3):
        hear(nodes, 2.0 + i, session="session-1")
    node = nodes.get(ALICE)
    assert node is not None
    assert nodes.has_twin(node, 14.0)
    assert not nodes.has_twin(node, 14.1)

    nodes.lose_silent(20.0)
    news = hear(nodes, 20.0, session="session-1")
    assert (news.is_new_session, news.is_superseded) == (True, False)
    assert nodes.is_session(ALICE, "session-1")


def test_a_restart_whose_former_process_says_goodbye_late_is_no_twin() -> None:
    nodes = table()
    hear(nodes, 0.0, session="session-1")
    hear(nodes, 1.0, session="session-2")
    for i in range(5):
        news = hear(nodes, 2.0 + i, session="session-1", state=NodeState.LEFT)
        assert (news.is_superseded, news.has_left, news.is_new_twin) == (True, False, False)
    node = nodes.get(ALICE)

    assert node is not None
    assert not nodes.has_twin(node, 6.0)
    assert nodes.present == [node]


def test_many_restarts_are_remembered_for_a_while_only() -> None:
    nodes = table()
    for number in range(100):
        hear(nodes, float(number), session=f"session-{number}")
    node = nodes.get(ALICE)

    assert node is not None
    assert len(node.superseded) == 8
    assert not nodes.has_twin(node, 99.0)


def test_only_who_left_and_did_nothing_is_forgotten() -> None:
    nodes = table()
    for peer in (ALICE, BOB):
        hear(nodes, 0.0, peer)
    nodes.refused(BOB, Reason.STALE, "too old")
    before_leaving = nodes.forget_visitor(ALICE)
    for peer in (ALICE, BOB):
        hear(nodes, 1.0, peer, state=NodeState.LEFT)
    forgotten = [nodes.forget_visitor(peer) for peer in (ALICE, BOB, PeerId("nobody"))]

    assert not before_leaving
    assert forgotten == [True, False, False]
    assert [node.peer for node in nodes] == [BOB]


def test_a_peer_is_proven_once_a_rollout_of_it_was_accepted_even_by_an_earlier_process() -> None:
    nodes = NodeTable(
        silent_after_s=10.0,
        contributions={BOB: NodeTotals(num_accepted=1), CAROL: NodeTotals(num_trained=0)},
    )
    hear(nodes, 0.0)
    assert not nodes.is_proven(ALICE)
    assert nodes.is_proven(BOB)
    assert not nodes.is_proven(CAROL)

    nodes.accepted(ALICE, 1, 1.0)
    hear(nodes, 1.0, BOB)

    assert nodes.is_proven(ALICE)
    assert nodes.is_proven(BOB)


def test_one_for_which_there_is_no_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.state.node_admission.MAX_UNPROVEN", 1)
    nodes = table()
    hear(nodes, 0.0)
    epoch = nodes.epoch

    news = hear(nodes, 1.0, BOB)

    assert "too many nodes" in news.no_room_why
    assert [node.peer for node in nodes] == [ALICE]
    assert nodes.epoch == epoch


def test_what_one_did_who_gave_way_counts_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("learner.state.node_admission.MAX_NODES", 1)
    nodes = table()
    hear(nodes, 0.0)
    nodes.accepted(ALICE, 3, 1.0)
    nodes.lose_silent(11.0)
    hear(nodes, 11.0, BOB)
    assert nodes.get(ALICE) is None
    assert nodes.is_proven(ALICE)

    hear(nodes, 12.0, BOB, state=NodeState.LEFT)
    hear(nodes, 13.0, ALICE)

    node = nodes.get(ALICE)
    assert node is not None
    assert node.num_accepted == 3
