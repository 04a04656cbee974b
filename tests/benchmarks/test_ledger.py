"""The ledger's benchmark records what a run records."""

from pathlib import Path

from benchmarks.ledger import GROUP_SIZE, GROUPS_PER_LEASE, LEASES_PER_STEP, run


def test_every_rollout_is_recorded_trained_on_and_timed(tmp_path: Path) -> None:
    per_step = GROUP_SIZE * GROUPS_PER_LEASE * LEASES_PER_STEP

    outcome = run(25 * per_step, tmp_path)

    assert outcome.figures["num_rollouts"] == 25 * per_step
    times = {str(row[0]): row[1] for row in outcome.rows}
    assert times == {
        "granted": 25 * LEASES_PER_STEP,
        "judged": 25 * LEASES_PER_STEP,
        "ended": 25 * LEASES_PER_STEP,
        "trained": 25,
        "status": 25,
        "forgotten": 1,
        "reach": 1,
    }
    assert len(outcome.marks) == 3
    assert list(tmp_path.iterdir()) == []
