import io
import itertools
from collections import Counter
from collections.abc import Iterable

import pytest
import structlog

from echo2swarm.system.log_budget import OTHERS, WORK, LogBudget
from echo2swarm.system.logging import configure_logging

MINUTE_S = 60.0
LINE_BYTES = 250


class Log:
    """Lines that were let through, at times that the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[dict[str, object]] = []
        self._budget = LogBudget(clock=lambda: self.now_s)

    def write(self, event: str, **fields: object) -> bool:
        line: dict[str, object] = {"event": event, **fields}
        try:
            self._budget(None, "warning", line)
        except structlog.DropEvent:
            return False
        self.lines.append(line)
        return True

    def flood(
        self, events: Iterable[str], peers: Iterable[object], *, for_s: float, per_s: int
    ) -> None:
        """Write lines of each kind about each peer, ``per_s`` in all."""
        everybody = list(peers)
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            for peer, event in itertools.product(everybody, events):
                self.write(event, peer=str(peer))
                self.now_s += 1 / per_s


@pytest.fixture
def log() -> Log:
    return Log()


def test_what_is_about_no_peer_is_always_written(log: Log) -> None:
    assert all(log.write("step.done", step=i) for i in range(10_000))


def test_one_peer_can_cause_few_lines_and_does_not_hide_those_of_others(log: Log) -> None:
    log.flood(["rollouts.refused"], ["bad"], for_s=MINUTE_S, per_s=1000)

    assert len(log.lines) <= OTHERS.per_peer_burst + OTHERS.per_peer_per_s * MINUTE_S + 1
    assert log.write("rollouts.refused", peer="good")


def test_many_peers_together_can_cause_few_lines(log: Log) -> None:
    log.flood(["node.state"], range(200), for_s=10 * MINUTE_S, per_s=500)
    log.lines.clear()

    log.flood(["node.state"], range(200), for_s=MINUTE_S, per_s=500)

    assert len(log.lines) <= OTHERS.per_s * (MINUTE_S + 1 / OTHERS.per_peer_per_s) + 1


def test_the_disk_grows_by_less_than_a_megabyte_a_minute(log: Log) -> None:
    kinds = ["node.state", "lease.ended"]
    log.flood(kinds, range(60), for_s=10 * MINUTE_S, per_s=500)
    log.lines.clear()

    log.flood(kinds, range(60), for_s=MINUTE_S, per_s=500)

    assert len(log.lines) * LINE_BYTES < 1_000_000


def test_work_is_logged_at_the_rate_at_which_a_fast_node_does_it(log: Log) -> None:
    log.flood(["lease.ended"], ["fast"], for_s=10 * MINUTE_S, per_s=8)

    assert len(log.lines) >= 10 * MINUTE_S * 8
    assert WORK.per_peer_per_s > 8


def test_work_is_logged_whatever_else_is_said_of_the_peer(log: Log) -> None:
    log.flood(["rollouts.refused"], ["odd"], for_s=MINUTE_S, per_s=100)

    assert log.write("rollouts.judged", peer="odd")


def test_what_a_report_is_made_of_is_never_held_back(log: Log) -> None:
    log.flood(["version.applied"], range(60), for_s=MINUTE_S, per_s=1000)
    log.lines.clear()

    assert all(log.write("version.applied", peer="good", is_kept=True) for _ in range(5_000))
    assert log.lines == [{"event": "version.applied", "peer": "good"}] * 5_000


def test_what_need_not_be_kept_is_held_back_and_says_nothing_of_it(log: Log) -> None:
    for _ in range(WORK.per_peer_burst + 10):
        log.write("version.applied", peer="bad", is_kept=False)

    assert len(log.lines) == WORK.per_peer_burst
    assert log.lines[-1] == {"event": "version.applied", "peer": "bad"}


def test_what_was_held_back_is_counted_in_the_next_line(log: Log) -> None:
    for _ in range(OTHERS.per_peer_burst + 7):
        log.write("rollouts.refused", peer="bad")
    log.now_s += 1 / OTHERS.per_peer_per_s

    assert log.write("rollouts.refused", peer="bad")
    assert log.lines[-1]["num_not_shown"] == 7


def test_who_reports_others_pays_for_the_lines_about_them(log: Log) -> None:
    for i in range(1000):
        log.write("peer.reported", peer=f"victim {i}", by="bad")

    assert Counter(line["by"] for line in log.lines) == {"bad": OTHERS.per_peer_burst}


def test_the_programs_log_has_the_budget() -> None:
    saved, stream = structlog.get_config(), io.StringIO()
    try:
        configure_logging(stream=stream)
        for _ in range(1000):
            structlog.get_logger().warning("rollouts.refused", peer="bad")
    finally:
        structlog.configure(**saved)

    assert stream.getvalue().count("rollouts.refused") <= OTHERS.per_peer_burst + 2
