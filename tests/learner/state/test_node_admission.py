"""Identities cost nothing: those that never delivered anything are bounded, and forgotten first."""

import pytest

from echo2swarm.scheduling.selection.speed import Presence
from echo2swarm.system.rates import WindowSum
from learner.state.node import Node
from learner.state.node_admission import (
    FORGET_AFTER_S,
    MAX_NODES,
    MAX_UNPROVEN,
    MAX_UNPROVEN_PER_HOST,
    NoRoomError,
    by_use,
    idle,
    who_gives_way,
)
from protocols.advert import NodeAdvert
from protocols.heartbeat import NodeState
from protocols.ids import PeerId


def node(
    name: str, *, host: str = "", accepted: int = 0, heard_at_s: float = 0.0, is_lost: bool = False
) -> Node:
    made = Node(
        peer=PeerId(name),
        session_id="s",
        advert=NodeAdvert("run", name, "node", 1, (), name, "engine", "cpu", 1.0, "test"),
        state=NodeState.ACTIVE,
        joined_at_s=0.0,
        heard_at_s=heard_at_s,
        host=host,
        accepted=WindowSum(300.0, started_s=0.0),
        presence=Presence(0.0),
    )
    made.num_accepted, made.is_lost = accepted, is_lost
    return made


def many(count: int, *, host: str = "", accepted: int = 0) -> list[Node]:
    return [
        node(f"{host}-{i}", host=host or f"host-{i}", accepted=accepted, heard_at_s=float(i))
        for i in range(count)
    ]


def test_while_there_is_room_nobody_gives_way() -> None:
    nodes = many(MAX_UNPROVEN_PER_HOST - 1, host="10.0.0.1")

    assert who_gives_way(nodes, host="10.0.0.1", is_proven=False) is None


def test_of_one_address_so_many_are_let_in_until_one_has_delivered() -> None:
    nodes = many(MAX_UNPROVEN_PER_HOST, host="10.0.0.1")
    with pytest.raises(NoRoomError, match="from this address"):
        who_gives_way(nodes, host="10.0.0.1", is_proven=False)
    assert who_gives_way(nodes, host="10.0.0.2", is_proven=False) is None
    assert who_gives_way(nodes, host="10.0.0.1", is_proven=True) is None
    assert who_gives_way(nodes, host="", is_proven=False) is None

    nodes[3].is_lost = True
    assert who_gives_way(nodes, host="10.0.0.1", is_proven=False) is nodes[3]

    nodes[3].num_accepted = 1
    assert who_gives_way(nodes, host="10.0.0.1", is_proven=False) is None


def test_when_all_places_of_the_unproven_are_taken_those_of_the_fullest_address_give_way() -> None:
    crowd = [n for host in range(MAX_UNPROVEN // 32) for n in many(32, host=f"10.0.0.{host}")]
    crowd[40].is_lost = True
    assert who_gives_way(crowd, host="new", is_proven=False) is crowd[40], "the lost ones first"

    crowd[40].is_lost = False
    victim = who_gives_way(crowd, host="new", is_proven=False)
    assert victim is not None
    assert victim.heard_at_s == 0.0

    spread = many(MAX_UNPROVEN)
    with pytest.raises(NoRoomError, match="too many nodes"):
        who_gives_way(spread, host="new", is_proven=False)
    assert who_gives_way(spread, host="new", is_proven=True) is None


def test_one_that_has_delivered_gives_way_only_when_it_is_gone_and_all_have() -> None:
    nodes = [*many(MAX_NODES - 1, accepted=1), node("idler", host="10.0.0.1")]
    nodes[5].is_lost = True

    victim = who_gives_way(nodes, host="new", is_proven=True)
    assert victim is not None
    assert victim.peer == "idler"

    nodes[-1].num_accepted = 1
    assert who_gives_way(nodes, host="new", is_proven=True) is nodes[5]
    nodes[5].is_lost = False
    with pytest.raises(NoRoomError):
        who_gives_way(nodes, host="new", is_proven=True)


def test_who_never_delivered_is_forgotten_a_while_after_it_is_gone() -> None:
    nodes = [
        node("idle", is_lost=True),
        node("present"),
        node("worker", accepted=1, is_lost=True),
        node("just gone", is_lost=True, heard_at_s=FORGET_AFTER_S),
    ]

    assert [n.peer for n in idle(nodes, FORGET_AFTER_S + 1)] == ["idle"]


def test_the_nodes_one_would_miss_most_are_first() -> None:
    nodes = [
        node("gone, did nothing", is_lost=True),
        node("new"),
        node("gone, did much", accepted=9, is_lost=True),
        node("does much", accepted=9),
        node("does little", accepted=1),
    ]

    assert [n.peer for n in by_use(nodes)] == [
        "does much",
        "does little",
        "gone, did much",
        "new",
        "gone, did nothing",
    ]
