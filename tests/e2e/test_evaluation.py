"""Evaluations by the swarm itself, with real processes: the curve, and a killed learner."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from echo2swarm.report.report import write_report
from learner.config import CheckpointConfig, EvalConfig, LearnerConfig, SwarmConfig, TrainerConfig
from learner.demo.swarm import LocalSwarm, open_swarm
from tests.e2e.swarms import JOIN_S, free_port, tiny_config

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

NUM_STEPS = 24
NUM_PROMPTS, NUM_SAMPLES = 32, 4
NODE = ("--listen", "/ip4/127.0.0.1/tcp/0")


def evaluated(config: LearnerConfig, *, every_steps: int) -> LearnerConfig:
    table = EvalConfig(every_steps=every_steps, num_prompts=NUM_PROMPTS, num_samples=NUM_SAMPLES)
    return msgspec.structs.replace(config, eval=table)


def rows(swarm: LocalSwarm, query: str) -> list[Any]:
    path = swarm.run_dir / "ledger.sqlite"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


async def test_a_run_that_is_evaluated_has_a_curve_and_trains_on_no_held_out_prompt(
    tmp_path: Path,
) -> None:
    config = evaluated(tiny_config(num_steps=NUM_STEPS), every_steps=8)
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(config)
        for name in ("ada", "bob"):
            await swarm.start_node(name, ticket, arguments=NODE)
        await swarm.wait_finished(timeout_s=300)
        status = swarm.status()
        points = [json.loads(f) for (f,) in rows(swarm, "SELECT figures FROM evaluations")]
        trained = {p for (p,) in rows(swarm, "SELECT prompt_tokens FROM groups")}
        held_out = {p for (p,) in rows(swarm, "SELECT prompt_tokens FROM evaluation_prompts")}
        ((num_samples,),) = rows(swarm, "SELECT COUNT(*) FROM evaluation_samples")
        leases = swarm.events("evaluation.leased")
        report = write_report(swarm.run_dir, tmp_path / "report").read_text()

    versions = [point["version"] for point in points]
    assert versions[0] == 0
    assert versions[-1] == NUM_STEPS
    # On a busy machine one may be passed by, and another lack some prompts.
    assert 3 <= len(versions) <= 4
    assert len({version // 8 for version in versions}) == len(versions)
    assert points[-1]["num_prompts"] == NUM_PROMPTS
    assert all(point["num_prompts"] >= NUM_PROMPTS / 2 for point in points)
    # The tiny model sorts about half of what it is given, and learns to sort more.
    first, last = points[0]["mean_at_k"], points[-1]["mean_at_k"]
    assert 0.2 < first["value"] < last["value"] <= 1
    assert all(0 <= p["mean_at_k"]["low"] < p["mean_at_k"]["high"] <= 1 for p in points)
    counted = sum(point["num_prompts"] for point in points) * NUM_SAMPLES
    assert counted <= num_samples <= len(points) * NUM_PROMPTS * NUM_SAMPLES
    assert len(held_out) == NUM_PROMPTS
    assert len(trained) > 100
    assert not held_out & trained
    assert {lease["version"] for lease in leases} == set(versions)
    assert status is not None
    assert status.evaluation is not None
    assert status.evaluation.newest is not None
    assert status.evaluation.newest.version == NUM_STEPS
    assert "![evaluation](evaluation.png)" in report


async def test_a_learner_killed_in_an_evaluation_goes_on_with_it_and_counts_each_sample_once(
    tmp_path: Path,
) -> None:
    base = tiny_config(
        num_steps=8, lease_timeout_s=10, trainer=TrainerConfig(kind="sleep", train_s=0.2)
    )
    config = msgspec.structs.replace(
        evaluated(base, every_steps=1000),
        swarm=SwarmConfig(listen=(f"/ip4/127.0.0.1/tcp/{free_port()}",), heartbeat_s=0.5),
        checkpoint=CheckpointConfig(every_steps=3, keep=2),
    )
    slow = (*NODE, "--engine-option", "rollouts_per_s=20")

    def num_answers(swarm: LocalSwarm) -> int:
        ((num,),) = rows(swarm, "SELECT COUNT(*) FROM evaluation_samples WHERE version = 0")
        return int(num)

    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(config)
        for name in ("ada", "bob"):
            await swarm.start_node(name, ticket, engine="sleep", arguments=slow)
        await swarm.wait_for(
            lambda: num_answers(swarm) >= 16 or None, timeout_s=JOIN_S, what="a part of the answers"
        )
        os.kill(swarm.learner.pid, signal.SIGKILL)
        await swarm.learner.wait()
        before = rows(swarm, "SELECT * FROM evaluation_samples")
        was_going_on = rows(swarm, "SELECT version FROM evaluations WHERE outcome IS NULL")
        await swarm.launch_learner(config, arguments=("--resume",))
        with trio.fail_after(200):
            assert await swarm.learner.wait() == 0
        resumed = swarm.events("evaluation.resumed")
        after = rows(swarm, "SELECT * FROM evaluation_samples WHERE version = 0")
        outcomes = rows(swarm, "SELECT version, outcome FROM evaluations ORDER BY version")
        told = [m["eval/version"] for m in swarm.metrics() if "eval/version" in m]
        ((stalest,),) = rows(swarm, "SELECT MAX(staleness) FROM rollouts")

    assert was_going_on == [(0,)]
    assert 16 <= len(before) < NUM_PROMPTS * NUM_SAMPLES
    assert [(e["version"], e["num_answers"]) for e in resumed] == [(0, len(before))]
    assert set(before) <= set(after)
    assert len(after) == NUM_PROMPTS * NUM_SAMPLES
    assert outcomes == [(0, "complete"), (8, "complete")]
    assert told == [0, 8]
    assert stalest <= 2
