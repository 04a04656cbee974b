"""The marks of the pacing benchmark, and how it counts waste."""

import sqlite3
from pathlib import Path

import pytest

from benchmarks.pacing import Measured, judge, read_waste, simulate
from learner.ledger.schema import SCHEMA


def run(
    name: str = "live, and a slow node",
    *,
    expired: float = 0.0,
    slow: float = 1.0,
    told: bool = False,
) -> Measured:
    return Measured(
        name=name,
        busy_share=1.0,
        num_issued=100,
        num_trained=90,
        expired_share=expired,
        doubled_share=0.0,
        slow_share=slow,
        slow_was_told=told,
    )


@pytest.mark.parametrize(
    ("without", "live", "is_good"),
    [
        (0.33, run(), True),
        (0.33, run(slow=0.0, told=True), True),
        (0.33, run(slow=0.3), False),
        (0.33, run(expired=0.03), False),
        (0.1, run(), False),
    ],
)
def test_pacing_must_save_work_and_leave_nobody_without_a_share_or_a_reason(
    without: float, live: Measured, is_good: bool
) -> None:
    assert judge([run("not paced", expired=without), run("paced"), live]).is_good is is_good


def test_what_is_simulated_without_pacing_wastes_what_is_too_much() -> None:
    found = simulate(is_paced=False, has_slow=False)

    assert 0.25 < found.expired_share < 0.4


def test_stale_rollouts_count_wherever_it_was_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    db.execute("INSERT INTO groups VALUES (1, x'00', 0, NULL, 'stale', 1)")
    db.execute("INSERT INTO groups VALUES (2, x'00', 0, NULL, 'run_ended', 1)")
    db.execute("INSERT INTO leases VALUES ('lease-1', 'p', 's', 0, 2, 0, 1, 'too_old', 5)")
    db.execute("INSERT INTO leases VALUES ('lease-2', 'p', 's', 0, 2, 0, 1, 'returned', 9)")
    for group in (1, 2):
        db.execute(
            "INSERT INTO rollouts VALUES (?, 0, 'lease-1', 'p', 0, 4, 0, 1.0, '', NULL, NULL, 0, "
            "NULL)",
            (group,),
        )
    for reason, count in (("stale", 3), ("already_answered", 7), ("wrong_shape", 11)):
        db.execute("INSERT INTO refusals VALUES ('p', ?, ?, '', 0)", (reason, count))
    db.commit()
    db.close()

    assert read_waste(path) == (3 + 1 + 5, 7)
