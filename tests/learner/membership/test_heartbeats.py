"""What nodes are told in answer to their heartbeats: neighbours, rates, warnings."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from learner.state.link_table import LinkTable
from learner.state.node_table import TWIN_WARNING
from protocols.heartbeat import (
    Dial,
    Directive,
    LinkReport,
    NodeState,
    PeerReport,
    Trouble,
    TroubleKind,
)
from protocols.reasons import Reason
from protocols.status import Reachability
from tests.learner.swarm_world import ScriptedNode, World, config, open_world


async def join(world: World, count: int) -> list[ScriptedNode]:
    """Let nodes join that never get to work by themselves."""
    nodes = [world.start_node(1 + i, generate_s=1e6, broadcast_s=1e6) for i in range(count)]
    for node in nodes:
        await node.joined.wait()
    return nodes


async def test_neighbours_are_given_to_both_of_a_pair_with_their_addresses(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        nodes = await join(world, 4)
        replies = {node.peer: await node.heartbeat() for node in nodes}

    for node in nodes:
        given = replies[node.peer].neighbours
        assert {n.peer_id for n in given} == replies.keys() - {node.peer}
        for neighbour in given:
            (other,) = [n for n in nodes if n.peer == neighbour.peer_id]
            assert other.network is not None
            assert neighbour.addresses == other.network.addresses()


async def test_neighbours_are_not_sent_to_addresses_that_no_node_of_this_network_should_dial(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    aimed = (
        "/ip4/127.0.0.1/tcp/4150",
        "/ip4/169.254.169.254/tcp/8080",
        "/ip4/10.0.0.9/tcp/22",
        "/dns4/victim.example/tcp/4150",
    )
    async with open_world(tmp_path) as world:
        one, two = await join(world, 2)
        assert one.network is not None
        own = one.network.addresses()
        await one.heartbeat(advert=one.advert((*aimed, *own)))
        reply = await two.heartbeat()

    assert [(each.peer_id, each.addresses) for each in reply.neighbours] == [(one.peer, own)]


async def test_who_leaves_is_given_to_nobody_any_more(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        one, two, three = await join(world, 3)
        await one.heartbeat(state=NodeState.LEFT)
        reply = await two.heartbeat()

    assert [n.peer_id for n in reply.neighbours] == [three.peer]


async def test_who_only_looked_in_is_not_kept_but_who_fetched_weights_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        visitor, fetcher, other = await join(world, 3)
        await visitor.heartbeat(state=NodeState.LEFT)
        await visitor.heartbeat(state=NodeState.LEFT)
        await fetcher.heartbeat(state=NodeState.LEFT, payload_bytes_received=1000)
        names = {line.peer_id for line in (await other.status()).nodes}
        back = await visitor.heartbeat()

    assert names == {fetcher.peer, other.peer}
    assert back.directive is not Directive.FINISHED


async def test_a_node_hears_what_it_was_measured_at_and_status_shows_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        one, two = await join(world, 2)
        for second in range(1, 8):
            await trio.sleep(1)
            total = second * 1_000_000
            sent = LinkReport(two.peer, total, 0, Dial.REACHED)
            received = LinkReport(one.peer, 0, total, Dial.UNTRIED)
            await one.heartbeat(links=(sent,))
            await two.heartbeat(links=(received,), receiving_s=float(second))
        await trio.sleep(2)
        reply = await one.heartbeat()
        status = await one.status()

    assert reply.upload_bytes_per_s == pytest.approx(1e6, rel=0.15)
    lines = {line.peer_id: line for line in status.nodes}
    assert lines[one.peer].upload_bytes_per_s == pytest.approx(1e6, rel=0.15)
    assert lines[two.peer].download_bytes_per_s == pytest.approx(1e6, rel=0.15)
    assert lines[two.peer].reachability is Reachability.YES
    assert lines[one.peer].reachability is Reachability.UNKNOWN
    assert lines[one.peer].num_neighbours == 1


async def test_what_keeps_a_node_from_working_is_in_the_status_until_it_is_over(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    trouble = Trouble(TroubleKind.SAMPLE, "prompt of 60 and 16 new tokens, the model takes 64")
    async with open_world(tmp_path) as world:
        (one,) = await join(world, 1)
        await one.heartbeat(trouble=trouble)
        during = (await one.status()).nodes[0].trouble
        await trio.sleep(3)
        await one.heartbeat()
        after = (await one.status()).nodes[0].trouble

    assert during == trouble
    assert after is None


async def test_a_node_that_three_others_report_is_told_and_shut_out(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        bad, *others = await join(world, 4)
        with capture_logs() as logged:
            for other in others:
                await other.heartbeat(reports=(PeerReport(bad.peer, Reason.BAD_CHUNK_HASH, 1),))
        reply = await bad.heartbeat()
        theirs = await others[0].heartbeat()
        status = await bad.status()

    assert reply.neighbours == ()
    assert "shut out" in reply.warning
    assert bad.peer not in {n.peer_id for n in theirs.neighbours}
    assert theirs.warning == ""
    assert [e["event"] for e in logged if e["log_level"] == "error"] == ["peer.shut_out"]
    (line,) = [line for line in status.nodes if line.peer_id == bad.peer]
    assert "shut out" in line.warning


async def test_two_processes_under_one_identity_are_both_told_and_the_newer_one_works(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config()) as world:
        (node,) = await join(world, 1)
        with capture_logs() as logged:
            for _ in range(4):
                await trio.sleep(1)
                await node.heartbeat(session_id="session-1", applied_version=0)
                await node.heartbeat(session_id="session-2", applied_version=0)
            older = await node.heartbeat(session_id="session-1", applied_version=0)
            newer = await node.heartbeat(session_id="session-2", applied_version=0)
        status = await node.status()

    assert older.warning == newer.warning == TWIN_WARNING
    assert (older.directive, newer.directive) == (Directive.STANDBY, Directive.ACTIVE)
    assert older.neighbours == ()
    events = [e["event"] for e in logged]
    assert events.count("identity.shared") == 1
    assert events.count("node.returned") == 1
    assert [line.warning for line in status.nodes] == [TWIN_WARNING]
    assert len(TWIN_WARNING) <= 200


async def test_work_that_is_waited_for_is_granted_the_moment_a_node_has_the_version_for_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(max_staleness=0)) as world:
        (node,) = await join(world, 1)
        node.applied = 0
        await node.heartbeat(state=NodeState.ACTIVE)
        while not world.trainer.batches:
            await node.heartbeat(state=NodeState.ACTIVE)
            reply = await node.ask(wait_s=0.5)
            if reply.lease is not None:
                await node.submit(reply.lease.lease_id, node.rollouts_of(reply.lease, 0))
        granted_s: list[float] = []

        async def wait_for_work() -> None:
            reply = await node.ask(wait_s=15)
            assert reply.lease is not None
            granted_s.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_work)
            while 1 not in world.publisher.versions:
                await node.heartbeat(state=NodeState.ACTIVE)
                await trio.sleep(0.1)
            # The nodes have just been chosen anew, and will not be in the next second.
            await node.heartbeat(state=NodeState.SYNCING)
            await node.heartbeat(state=NodeState.ACTIVE)
            await trio.sleep(0.2)
            assert not granted_s
            node.applied = 1
            await node.heartbeat(state=NodeState.ACTIVE)
            applied_s = trio.current_time()

    assert granted_s[0] - applied_s < 0.2


async def test_the_links_of_one_who_is_forgotten_are_forgotten_too(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr("learner.state.node_admission.MAX_NODES", 2)
    monkeypatch.setattr(LinkTable, "forget", lambda _self, peer: forgotten.append(peer))
    async with open_world(tmp_path) as world:
        first, second = await join(world, 2)
        first.kill()
        await trio.sleep(5)
        await second.heartbeat()
        await trio.sleep(5)
        third = world.start_node(3, generate_s=1e6, broadcast_s=1e6)
        await third.joined.wait()

    assert forgotten == [first.peer]


async def test_one_for_which_there_is_no_room_is_told_why_and_comes_in_when_there_is(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.state.node_admission.MAX_UNPROVEN", 2)
    async with open_world(tmp_path) as world:
        first, _ = await join(world, 2)
        third = world.start_node(3, generate_s=1e6, broadcast_s=1e6)
        await third.joined.wait()
        told = await third.heartbeat()
        first.kill()
        await trio.sleep(30)
        await third.heartbeat()

        assert world.learner.nodes.get(third.peer) is not None

    assert told.directive is Directive.STANDBY
    assert "too many nodes" in told.why


async def test_who_never_delivered_is_forgotten_with_its_links_and_fills_no_ledger(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=10_000)) as world:
        worker = world.start_node(3, generate_s=0.5)
        idler, _ = await join(world, 2)
        idler.kill()
        while len(world.trainer.batches) < 1:  # noqa: ASYNC110
            await trio.sleep(1)
        await trio.sleep(300)
        assert world.learner.nodes.get(idler.peer) is not None
        await trio.sleep(400)

        assert world.learner.nodes.get(idler.peer) is None
        assert world.learner.nodes.get(worker.peer) is not None

    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        assert [row[0] for row in db.execute("SELECT peer FROM nodes")] == [worker.peer]
