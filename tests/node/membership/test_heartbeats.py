"""Heartbeats: when they are sent, what they carry, and what comes of the answers."""

import trio
from trio.testing import MockClock

from echo2swarm.network.base import PeerInfo
from protocols.heartbeat import MAX_REPORTS, Directive, NodeState, PeerReport
from protocols.ids import PeerId
from protocols.reasons import Reason
from tests.node.bench import LEARNER, LEARNER_AT, open_bench
from tests.node.fakes import FakeLearner


async def test_the_learner_hears_of_every_state_and_version_at_once(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(next_heartbeat_s=3600)
    async with open_bench(learner) as bench:
        with trio.fail_after(30):
            await learner.until(lambda: learner.states == [NodeState.JOINING, NodeState.SYNCING])
            bench.policies.hold(0)
            await learner.until(lambda: learner.states[-1] is NodeState.ACTIVE)
            bench.policies.hold(1)
            await learner.until(lambda: learner.beats[-1].applied_version == 1)

    assert learner.states == [
        NodeState.JOINING,
        NodeState.SYNCING,
        NodeState.STANDBY,
        NodeState.ACTIVE,
    ]


async def test_heartbeats_come_as_often_as_the_learner_wants(autojump_clock: MockClock) -> None:
    learner = FakeLearner(next_heartbeat_s=5, directive=Directive.STANDBY)
    async with open_bench(learner) as bench:
        bench.policies.hold(0)
        await trio.sleep(10)
        num_before = len(learner.beats)
        await trio.sleep(100)

        assert 18 <= len(learner.beats) - num_before <= 20


async def test_the_learners_reason_is_shown_once_until_it_changes(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(directive=Directive.STANDBY, why="enough nodes are at work")
    async with open_bench(learner) as bench:
        await trio.sleep(20)
        learner.why = "too dear"
        await trio.sleep(20)

    assert [e["why"] for e in bench.events("learner.says")] == [
        "enough nodes are at work",
        "too dear",
    ]


async def test_a_warning_is_logged_once_and_again_when_it_is_over(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner()
    async with open_bench(learner) as bench:
        await trio.sleep(10)
        learner.warning = "two processes share your identity"
        await trio.sleep(20)
        learner.warning = ""
        await trio.sleep(20)

    assert [e["warning"] for e in bench.events("learner.warns")] == [
        "two processes share your identity"
    ]
    assert len(bench.events("warning.over")) == 1


async def test_reports_about_peers_reach_the_learner_once_even_if_a_heartbeat_is_lost(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner(garble=True)
    async with open_bench(learner) as bench:
        bench.faults.append(_fault("12D3KooW1"))
        await trio.sleep(2)
        learner.garble = False
        bench.faults += [_fault(f"12D3KooW{i}") for i in range(2, 40)]
        num_garbled = len(learner.beats)
        await trio.sleep(60)

    good = learner.beats[num_garbled:]
    told = [report.peer_id for beat in good for report in beat.reports]
    assert told[0] == "12D3KooW1"
    assert len(told) == len(set(told)) == MAX_REPORTS
    assert bench.events("heartbeat.unanswered")[0]["reason"] == "malformed"


def _fault(peer: str) -> PeerReport:
    return PeerReport(PeerId(peer), Reason.BAD_CHUNK_HASH, 1)


async def test_a_node_leaves_when_the_learner_says_the_run_is_over(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner()
    async with open_bench(learner) as bench:
        bench.policies.hold(0)
        with trio.fail_after(60):
            await learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            learner.directive = Directive.FINISHED
            await bench.life.wait_left()
            await bench.membership.say_goodbye()

    assert bench.life.is_run_finished
    assert learner.beats[-1].state is NodeState.LEFT


async def test_a_learner_that_answers_garbage_is_lost_and_found_again(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner()
    async with open_bench(learner) as bench:
        bench.policies.hold(0)
        with trio.fail_after(300):
            await learner.until(lambda: bench.life.state is NodeState.ACTIVE)
            learner.garble = True
            while bench.life.state is not NodeState.JOINING:  # noqa: ASYNC110 - virtual clock
                await trio.sleep(1)
            learner.garble = False
            await learner.until(lambda: bench.life.state is NodeState.ACTIVE)

    assert len(bench.events("heartbeat.unanswered")) == 1
    assert len(bench.events("learner.silent")) == 1


async def test_nobody_is_called_before_discovery_has_connected_to_the_learner(
    autojump_clock: MockClock,
) -> None:
    async with open_bench() as bench:
        await bench.network.disconnect(LEARNER)
        await trio.sleep(60)

        assert bench.learner.beats == []
        assert bench.life.state is NodeState.JOINING
        with trio.fail_after(60):
            await bench.membership.say_goodbye()
        assert bench.learner.beats == []


async def test_a_connection_that_carries_no_answers_is_given_up_for_a_new_one(
    autojump_clock: MockClock,
) -> None:
    learner = FakeLearner()
    async with open_bench(learner) as bench:
        await learner.until(lambda: bool(learner.beats))
        learner.mute = True
        with trio.fail_after(120):
            while LEARNER in bench.network.connected_peers():  # noqa: ASYNC110 - virtual clock
                await trio.sleep(1)
        learner.mute = False
        await bench.network.connect(PeerInfo(peer=LEARNER, addresses=(LEARNER_AT,)))
        num_before = len(learner.beats)
        with trio.fail_after(60):
            await learner.until(lambda: len(learner.beats) > num_before)

    assert bench.events("connection.renewing")
