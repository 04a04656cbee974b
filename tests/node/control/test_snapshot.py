"""In which phase a node is, and in what words; what it measures of itself; how it tells."""

import io
from dataclasses import replace

import msgspec
import pytest
import structlog
import trio
from trio.testing import MockClock

from node.control.messages import DownloadLine, NodePhase, NodeSnapshot
from node.control.meters import ActiveTime, LinkMeter
from node.control.snapshot import Doing, phase_of
from node.rollouts.engine_speed import EngineSpeed
from node.status_line import StatusLine, StatusReporter, status_text
from protocols.heartbeat import NodeState
from tests.node.control.test_control import snapshot

READY = Doing(
    state=NodeState.STANDBY,
    paused="",
    is_engine_up=True,
    download=None,
    loading=None,
    applied=3,
    published=3,
    num_sampling=0,
    num_in_hand=0,
    learner="abc",
    error="",
    why="standby: others cost less",
)
DOWNLOAD = DownloadLine(version=0, held_bytes=10**8, total_bytes=10**9, bytes_per_s=1e7, eta_s=90.0)
NEW = replace(READY, state=NodeState.SYNCING, applied=None)


@pytest.mark.parametrize(
    ("doing", "phase", "words"),
    [
        (READY, NodePhase.STANDBY, "others cost less"),
        (
            replace(READY, state=NodeState.JOINING, error="refused"),
            NodePhase.JOINING,
            "abc: refused",
        ),
        (replace(NEW, published=None), NodePhase.WAITING, "the learner's first version"),
        (replace(NEW, is_engine_up=False), NodePhase.WAITING, "the engine to start"),
        (
            replace(NEW, download=DOWNLOAD),
            NodePhase.DOWNLOADING,
            "100 MB of 1.00 GB at 10.0 MB/s, 90 s",
        ),
        (replace(NEW, loading=4), NodePhase.LOADING, "version 4"),
        (replace(READY, state=NodeState.ACTIVE), NodePhase.IDLE, "next lease"),
        (
            replace(
                READY, state=NodeState.ACTIVE, num_sampling=8, num_in_hand=16, download=DOWNLOAD
            ),
            NodePhase.GENERATING,
            "8 completions of 16 in hand with version 3",
        ),
        (
            replace(READY, state=NodeState.PAUSED, paused="outside its hours", num_in_hand=1),
            NodePhase.PAUSED,
            "outside its hours; finishing 1 rollout",
        ),
        (replace(READY, state=NodeState.DRAINING, num_in_hand=2), NodePhase.DRAINING, "2 rollouts"),
    ],
)
def test_what_a_node_does_is_said_in_words(doing: Doing, phase: NodePhase, words: str) -> None:
    found, text = phase_of(doing)

    assert found is phase
    assert words in text


def test_the_link_is_measured_over_the_last_seconds() -> None:
    meter = LinkMeter()
    assert meter.up_bytes_per_s == 0
    for second in range(21):
        sent = 1000 * min(second, 10)
        meter.look(float(second), sent_bytes=sent, received_bytes=500 * second)

    assert meter.up_bytes_per_s == 0
    assert meter.down_bytes_per_s == 500


def test_only_time_as_an_active_node_counts() -> None:
    time = ActiveTime()
    for now_s, is_active in [
        (0.0, False),
        (10.0, True),
        (20.0, True),
        (25.0, False),
        (99.0, False),
    ]:
        time.look(now_s, is_active=is_active)

    assert time.total_s(200.0) == 15.0
    time.look(200.0, is_active=True)
    assert time.total_s(205.0) == 20.0


def test_waiting_makes_no_engine_slow_and_calls_may_overlap() -> None:
    speed = EngineSpeed()
    assert EngineSpeed().tokens_per_s is None
    speed.began(8, 0.0)
    speed.began(4, 5.0)
    assert speed.num_sampling == 12
    speed.ended(8, 100, 10.0)
    speed.ended(4, 100, 20.0)
    assert speed.num_sampling == 0
    before = speed.tokens_per_s
    assert before is not None
    assert 9 < before < 11
    speed.began(8, 1000.0)
    speed.ended(8, 0, 1000.0)  # it failed at once
    assert speed.tokens_per_s == pytest.approx(before)
    assert speed.num_tokens == 200


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_status_line_stays_below_what_is_logged() -> None:
    terminal = Terminal()
    line = StatusLine(terminal, width=lambda: 40)
    line.write("first\n")
    line.show("downloading \x1b[31mred " + "x" * 100)
    line.write("second\n")
    line.show("")

    shown = terminal.getvalue()
    assert shown.startswith("first\n\r\x1b[2Kdownloading [31mred")
    assert "\r\x1b[2Ksecond\ndownloading" in shown
    assert shown.endswith("\r\x1b[2K")
    assert all(len(part) <= 41 for part in shown.split("\r\x1b[2K") if "second" not in part)


async def test_a_long_wait_is_told_of_again_and_again_where_there_is_no_terminal(
    autojump_clock: MockClock,
) -> None:
    seen = replace_phase(NodePhase.WAITING, "waiting for the engine to start")
    with structlog.testing.capture_logs() as logged, trio.move_on_after(34):
        await StatusReporter(lambda _: seen).run()

    assert [event["for_s"] for event in logged if event["event"] == "node.waiting"] == [
        3,
        13,
        23,
        33,
    ]


async def test_a_node_at_work_is_quiet(autojump_clock: MockClock) -> None:
    seen = replace_phase(NodePhase.GENERATING, "generating")
    with structlog.testing.capture_logs() as logged, trio.move_on_after(100):
        await StatusReporter(lambda _: seen).run()

    assert logged == []


def test_the_line_counts_what_was_done() -> None:
    assert "[40 accepted, 3 refused]" in status_text(snapshot(), waited_s=0)
    downloading = replace_phase(NodePhase.DOWNLOADING, "downloading", DOWNLOAD)
    assert "\u2588\u2588" in status_text(downloading, waited_s=5)


def replace_phase(
    phase: NodePhase, doing: str, download: DownloadLine | None = None
) -> NodeSnapshot:
    return msgspec.structs.replace(snapshot(), phase=phase, doing=doing, download=download)
