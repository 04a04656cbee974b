"""The simulator's benchmark: what it compares, and what it is satisfied with."""

from dataclasses import replace

import pytest

from benchmarks.capacity import CALIBRATION, CELLS, FULL, Measured, Overhead
from benchmarks.simulator import (
    Compared,
    Speed,
    Travel,
    compare,
    judge,
    large_scenario,
    simulated_cell,
    travel_of,
    typical_overhead,
)
from echo2swarm.simulate.cell import busy_share_after

OVERHEAD = Overhead(step_s=0.02, broadcast_s=0.0, rollout_s=0.05)
TRAVEL = Travel(first_s=0.2, last_s=0.5)
SPEED = Speed(
    num_nodes=10_000,
    num_steps=100,
    is_finished=True,
    ended="all steps are done",
    busy_share=0.98,
    bubble_share=0.0,
    num_events=1,
    num_rollouts=1,
    cpu_s=100.0,
    wall_s=100.0,
    rss_gb=1.0,
)


def measured(name: str) -> Measured:
    cell = next((cell for cell in CELLS if cell.name == name), CALIBRATION)
    return Measured(
        cell=cell,
        busy_share=0.99,
        period_s=2.0,
        metrics=[{"wait_s": 0.0, "train_s": 2.0, "write_s": 0.02, "publish_s": 0.1}],
        outlook=None,
        lease_s=(0.6, 0.6, 0.6, 0.6, 1.2),
        broadcast_s=(0.3, 0.6, 0.9),
        num_leased=100,
        num_stale=0,
    )


def test_a_share_of_the_large_swarm_has_a_share_of_everything() -> None:
    whole, part = (large_scenario(share=share, num_steps=9) for share in (1.0, 0.1))

    assert sum(kind.count for kind in whole.nodes) == 10_000
    assert sum(kind.count for kind in part.nodes) == 1_000
    assert part.rollouts_per_step * 10 == whole.rollouts_per_step


def test_half_of_the_nodes_are_simulated_as_half() -> None:
    compared = compare(measured("half of the nodes"), FULL, OVERHEAD, TRAVEL)

    assert compared.live == 0.99
    assert compared.simulated == pytest.approx(0.5, abs=0.03)


def test_what_a_version_takes_to_travel_leads_to_what_was_measured() -> None:
    calibration = measured("calibration")
    overhead = typical_overhead(calibration, FULL)
    travel = travel_of(calibration, FULL, overhead)

    result = simulated_cell(calibration.cell, FULL, overhead, travel, seed=0)
    assert 0.0 <= travel.first_s <= travel.last_s
    assert result.broadcast_p50_s == pytest.approx(0.6, abs=0.15)
    assert busy_share_after(result, 6) is not None


@pytest.mark.parametrize(
    ("speed", "compared", "is_good"),
    [
        (SPEED, Compared(name="x", live=0.5, simulated=0.52), True),
        (SPEED, Compared(name="x", live=0.5, simulated=0.54), False),
        (replace(SPEED, cpu_s=700.0), Compared(name="x", live=0.5, simulated=0.5), False),
        (replace(SPEED, rss_gb=4.1), Compared(name="x", live=0.5, simulated=0.5), False),
        (replace(SPEED, is_finished=False), Compared(name="x", live=0.5, simulated=0.5), False),
        (replace(SPEED, bubble_share=0.1), Compared(name="x", live=0.5, simulated=0.5), False),
    ],
)
def test_every_mark_counts(speed: Speed, compared: Compared, is_good: bool) -> None:
    assert judge(speed, [compared], max_cpu_s=600.0).is_good is is_good
