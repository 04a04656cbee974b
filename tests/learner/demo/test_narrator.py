from typing import Any

import pytest
from rich.text import Text

from echo2swarm.report.run_record import StepRecord
from echo2swarm.system.rates import LearnerPhase
from learner.demo.narrator import SILENCE_S, Narrator
from protocols.heartbeat import NodeState
from protocols.reasons import Reason
from protocols.status import NodeStatus, ReasonCount, StatusReply
from tests.echo2swarm.sample_status import node_with, status_with


def narrator() -> Narrator:
    return Narrator(num_steps=32, ascii_only=True)


def with_nodes(*nodes: NodeStatus, **changes: object) -> StatusReply:
    return status_with(nodes=nodes, **changes)


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def step(number: int, **changes: Any) -> StepRecord:  # noqa: ANN401
    fields = {
        "end_s": 10.0 * number,
        "reward_mean": 0.5,
        "wait_s": 3.0,
        "train_s": 6.0,
        "write_s": 0.5,
        "publish_s": 1.0,
        **changes,
    }
    return StepRecord(step=number, **fields)


def test_a_node_is_introduced_once_and_then_told_of_when_it_changes() -> None:
    teller = narrator()
    joining = with_nodes(node_with(state=NodeState.JOINING))

    assert plain(teller.nodes(joining)) == ["node-a joins (transformers on cpu)"]
    assert plain(teller.nodes(joining)) == []
    assert plain(teller.nodes(with_nodes(node_with()))) == ["node-a generates"]


def test_a_silent_node_and_its_return_are_told() -> None:
    teller = narrator()
    teller.nodes(with_nodes(node_with()))

    assert plain(teller.nodes(with_nodes(node_with(is_connected=False)))) == ["node-a is silent"]
    assert plain(teller.nodes(with_nodes(node_with()))) == ["node-a is back"]


def test_a_node_that_leaves_is_not_called_silent() -> None:
    teller = narrator()
    teller.nodes(with_nodes(node_with()))
    left = node_with(state=NodeState.LEFT, is_connected=False)

    assert plain(teller.nodes(with_nodes(left))) == ["node-a has left"]


def test_a_refusal_is_told_with_its_reason() -> None:
    teller = narrator()
    teller.nodes(with_nodes(node_with()))
    refused = node_with(
        refusals=(ReasonCount(Reason.STALE, 2),), last_refusal="stale: version 3 at step 6"
    )

    assert plain(teller.nodes(with_nodes(refused))) == [
        "node-a 2 refused: stale: version 3 at step 6"
    ]
    assert plain(teller.nodes(with_nodes(refused))) == []


def test_refusals_after_the_last_update_are_no_news() -> None:
    teller = narrator()
    late = node_with(refusals=(ReasonCount(Reason.LEASE_EXPIRED, 2),), last_refusal="late")
    teller.nodes(with_nodes(node_with()))

    assert plain(teller.nodes(with_nodes(late, learner_step=32))) == []


def test_a_restarted_engine_is_told() -> None:
    teller = narrator()
    teller.nodes(with_nodes(node_with()))

    assert plain(teller.nodes(with_nodes(node_with(num_engine_restarts=1)))) == [
        "node-a restarted its engine"
    ]


def test_a_version_is_told_when_the_last_node_has_it_with_who_sent_it() -> None:
    teller = narrator()
    a = node_with(applied_version=1, payload_bytes_sent=100_000_000)
    behind = node_with(name="node-b", peer_id=a.peer_id[:-1] + "2", applied_version=None)
    there = node_with(
        name="node-b", peer_id=a.peer_id[:-1] + "2", applied_version=1, payload_bytes_sent=0
    )
    sent = {"payload_bytes_sent": 269_000_000}

    assert plain(teller.version(with_nodes(a, behind, **sent))) == []
    assert plain(teller.version(with_nodes(a, there, **sent))) == [
        "version   1 at 2 nodes after 2.13 s   sent: learner 269 MB, node-a 100 MB"
    ]
    assert plain(teller.version(with_nodes(a, there, **sent))) == []


def test_no_version_is_told_of_nobody() -> None:
    assert narrator().version(with_nodes()) == []


@pytest.mark.parametrize(
    ("phase", "num_buffered", "told"),
    [
        (LearnerPhase.WAITING, 48, "step  13: waiting, 48 of 128 rollouts are here"),
        (LearnerPhase.WAITING, 500, "step  13: waiting, 128 of 128 rollouts are here"),
        (LearnerPhase.TRAINING, 48, "step  13: training"),
    ],
)
def test_after_some_silence_it_tells_what_is_waited_for(
    phase: LearnerPhase, num_buffered: int, told: str
) -> None:
    status = status_with(phase=phase, num_buffered=num_buffered)

    assert plain(narrator().silence(status, silent_s=SILENCE_S)) == [told]
    assert narrator().silence(status, silent_s=SILENCE_S - 1) == []


def test_when_all_steps_are_done_nothing_is_waited_for() -> None:
    assert narrator().silence(status_with(learner_step=32), silent_s=100) == []


def test_a_step_is_one_line_with_the_staleness_of_its_batch() -> None:
    teller = narrator()
    teller.step(step(1))

    assert teller.step(step(2, staleness=((0, 32), (1, 96)))).plain == (
        "step   2/32  ##########.......... 0.500  waited 3.00 s  trained 6.00 s"
        "  stale 0:32 1:96  300 s to go"
    )


def test_a_step_without_a_reward_is_told_all_the_same() -> None:
    line = narrator().step(step(1, reward_mean=None)).plain

    assert line.startswith("step   1/32  ....................     -  waited 3.00 s")
