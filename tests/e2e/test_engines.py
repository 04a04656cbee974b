"""Swarms whose nodes sample with several engines: what each brings to training, and how near it is.

The one with vLLM is skipped where ``ECHO2_VLLM_PYTHON`` names no interpreter.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import trio

from echo2swarm.report.engine_drift import NodeDrift
from echo2swarm.report.report import write_report
from echo2swarm.report.run_reader import read_run
from learner.config import ModelConfig, TrainerConfig
from learner.demo.swarm import LocalSwarm, open_swarm
from tests.e2e.swarms import LOOPBACK, no_update_before, tiny_config

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

VLLM_PYTHON = os.environ.get("ECHO2_VLLM_PYTHON", "")
ROLLOUTS_PER_STEP = 8 * 8
MAX_DRIFT = 0.2
"""Of a logprob, in the mean: bfloat16 and two steps of staleness stay well below."""


def in_ledger(swarm: LocalSwarm) -> dict[str, tuple[int, int]]:
    """Return of each node's name how many of its rollouts were accepted, and trained."""
    with closing(sqlite3.connect(swarm.run_dir / "ledger.sqlite")) as ledger:
        rows = ledger.execute(
            "SELECT name, COUNT(*), COUNT(trained_step) FROM rollouts JOIN nodes USING (peer) "
            "GROUP BY name"
        )
        return {name: (accepted, trained) for name, accepted, trained in rows}


def check(swarm: LocalSwarm) -> dict[str, NodeDrift]:
    """Hold the report against the ledger and the metrics; return what each node brought."""
    counts = in_ledger(swarm)
    brought = {each.node: each for each in read_run(swarm.run_dir).contributions}
    assert {name: (n.num_accepted, n.num_trained) for name, n in brought.items()} == counts
    assert (
        sum(trained for _, trained in counts.values()) == len(swarm.metrics()) * ROLLOUTS_PER_STEP
    )
    num_compared = sum(line["trainer"]["num_tokens_trained"] for line in swarm.metrics())
    assert sum(each.drift.num_tokens for each in brought.values()) == num_compared
    for each in brought.values():
        assert each.num_trained > 0
        assert each.drift.mean_difference is not None
        assert each.drift.mean_kl is not None
        assert 0 < each.drift.mean_difference < MAX_DRIFT
        assert 0 <= each.drift.mean_kl < MAX_DRIFT
    return brought


async def test_rollouts_of_both_nodes_are_trained_and_their_drift_is_in_the_report(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path / "swarm") as swarm:
        ticket = await swarm.start_learner(tiny_config(num_steps=12))
        names = ("ada", "bob")
        async with no_update_before(swarm, names):
            for name in names:
                await swarm.start_node(name, ticket, arguments=("--listen", LOOPBACK))
        await swarm.wait_finished(timeout_s=300)

    brought = check(swarm)
    assert len(swarm.metrics()) == 12
    assert brought.keys() == {"ada", "bob"}
    (engine,) = {each.engine for each in brought.values()}
    assert engine.startswith("transformers ")
    text = write_report(swarm.run_dir, tmp_path / "report").read_text()
    # Some may have been accepted that came too late to be trained on.
    num_accepted = sum(each.num_accepted for each in brought.values())
    assert f"| {engine} | all 2 | {num_accepted} | {12 * ROLLOUTS_PER_STEP} |" in text


@pytest.mark.model
@pytest.mark.vllm
@pytest.mark.skipif(not VLLM_PYTHON, reason="ECHO2_VLLM_PYTHON names no interpreter")
async def test_a_node_with_vllm_and_one_with_transformers_train_one_model(tmp_path: Path) -> None:
    # As the demo has it: what suits the tiny model tears this one up in a few steps.
    trainer = TrainerConfig(learning_rate=1e-5, warmup_steps=5, threads=1)
    config = tiny_config(num_steps=1000, trainer=trainer)
    config = msgspec.structs.replace(
        config,
        # vLLM has no kernels for the tiny model, whose heads are of 16.
        model=ModelConfig(path="embedded"),
        task={"kind": "arithmetic"},
        rollouts=msgspec.structs.replace(config.rollouts, lease_timeout_s=300.0),
    )
    async with open_swarm(tmp_path / "swarm") as swarm:
        ticket = await swarm.start_learner(config, timeout_s=300)
        options = ("--engine-option", "threads=1", "--engine-option", f"python={VLLM_PYTHON}")
        await swarm.start_node(
            "fast", ticket, engine="vllm", arguments=("--listen", LOOPBACK, *options)
        )
        await swarm.start_node("slow", ticket, arguments=("--listen", LOOPBACK, *options[:2]))
        # Whichever is up first makes some steps alone.
        await swarm.wait_status(
            lambda s: len(s.nodes) == 2 and all(n.num_trained > 0 for n in s.nodes),
            timeout_s=500,
            what="rollouts of both trained",
        )
        swarm.learner.interrupt()
        with trio.fail_after(120):
            await swarm.learner.wait()

    brought = check(swarm)
    assert brought.keys() == {"fast", "slow"}
    assert brought["fast"].engine.startswith("vllm ")
    assert brought["slow"].engine.startswith("transformers ")
