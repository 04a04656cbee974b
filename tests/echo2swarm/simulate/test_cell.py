"""Cells: what the simulator says against what the capacity model says."""

import pytest

from echo2swarm.scheduling.capacity import Delays, LearnerLoad, forecast
from echo2swarm.simulate.cell import Cell, busy_share_after, scenario_of
from echo2swarm.simulate.swarm import simulate_swarm

PROMPTS, SIZE, TRAIN_S = 6, 4, 2.0


def cell(**changes: float) -> Cell:
    values: dict[str, float] = {
        "max_staleness": 3,
        "num_nodes": 3,
        "rollouts_per_s": 1.15 * PROMPTS * SIZE / TRAIN_S / 3,
        "train_s": TRAIN_S,
        "prompts_per_step": PROMPTS,
        "group_size": SIZE,
        "num_steps": 40,
        "lease_overhead_s": 0.02,
        **changes,
    }
    return Cell(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "tolerance"),
    [
        (cell(), 0.03),
        (cell(rollouts_per_s=0.5 * 4.0), 0.03),
        (cell(rollouts_per_s=0.8 * 4.0), 0.03),
        # Here it matters who is given one lease more than the others, which is luck.
        (cell(max_staleness=0), 0.08),
        (cell(max_staleness=4, broadcast_s=2.5), 0.03),
    ],
    ids=["enough", "half", "four fifths", "on-policy", "slow broadcast"],
)
def test_the_simulated_learner_is_as_busy_as_the_model_says(made: Cell, tolerance: float) -> None:
    share = busy_share_after(simulate_swarm(scenario_of(made)), made.max_staleness + 2)

    lease_s = SIZE / made.rollouts_per_s
    predicted = forecast(
        LearnerLoad(
            rollouts_per_step=PROMPTS * SIZE,
            train_s=TRAIN_S,
            max_staleness=made.max_staleness,
            publish_every=made.publish_every,
        ),
        Delays(
            broadcast_s=made.broadcast_s,
            rollout_s=lease_s + made.lease_overhead_s,
            occupied_s=lease_s,
        ),
        rollouts_per_s=made.num_nodes * made.rollouts_per_s,
    )
    assert share == pytest.approx(predicted.utilisation, abs=tolerance)
