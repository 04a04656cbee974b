"""The line that says how far a run is."""

from pathlib import Path

import msgspec
import structlog
import trio
from trio.testing import MockClock

from learner.status.progress_log import EVERY_S, pulse_of
from protocols.status import Estimate, EvaluationPoint, EvaluationStatus, StalenessCount
from tests.learner.swarm_world import config, open_world


async def test_it_says_step_pace_and_time_to_go(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, config(num_steps=200)) as world:
        status = msgspec.structs.replace(
            world.learner.status.status(),
            learner_step=50,
            reward_mean=0.51234,
            busy_share=0.87,
            supplied_rollouts_per_s=3.456,
            staleness=(StalenessCount(0, 10), StalenessCount(2, 30)),
        )

    assert pulse_of(status, step_s=2.0) == {
        "step": "50/200",
        "reward": 0.512,
        "busy": "87%",
        "staleness": 1.5,
        "rollouts_per_s": 3.46,
        "nodes": 0,
        "to_go": "300 s",
    }
    assert pulse_of(status, step_s=None)["to_go"] is None
    point = EvaluationPoint(
        version=40,
        samples_per_prompt=4,
        num_prompts=64,
        num_prompts_wanted=64,
        mean_at_k=Estimate(0.5412, 0.5, 0.6),
        pass_at_1=Estimate(0.5, 0.5, 0.5),
    )
    evaluation = EvaluationStatus(newest=point, running_version=None, num_done=0, num_wanted=0)
    evaluated = msgspec.structs.replace(status, evaluation=evaluation)
    assert pulse_of(evaluated, step_s=2.0)["eval"] == "0.541 at 40"


async def test_a_run_that_moves_tells_at_even_distances_and_one_that_does_not_ever_less(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with open_world(tmp_path, config(num_steps=500)) as world:
            node = world.start_node(1)
            await trio.sleep(10 * EVERY_S + 1)
            num_moving = sum(entry["event"] == "run.progress" for entry in logs)
            node.kill()
            await trio.sleep(40 * EVERY_S)
            num_standing = sum(entry["event"] == "run.progress" for entry in logs) - num_moving

    assert num_moving == 10
    assert 3 <= num_standing <= 6
