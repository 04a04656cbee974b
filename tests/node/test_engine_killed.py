"""A real engine process, killed in the midst of sampling, again and again."""

import os
import random
import signal
from pathlib import Path

import pytest
import trio

from node.engine.base import EngineEvent, EngineReady
from node.engine.options import SleepOptions
from node.engine.process import engine_spec, open_engine
from protocols.leases import Lease
from protocols.lifecycle import EngineDied
from tests.node.bench import Bench, open_bench
from tests.node.engine.tiny_policy import tiny_model, write_policy
from tests.node.fakes import FakeLearner

NUM_KILLS = 20


@pytest.mark.model
async def test_an_engine_killed_again_and_again_loses_no_lease_and_miscounts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Started anew at once: how long a node waits for it is tested elsewhere.
    monkeypatch.setattr("node.engine.process._FIRST_DELAY_S", 0.01)
    policy = write_policy(tmp_path, 0, tiny_model(seed=0))
    spec = engine_spec("sleep", SleepOptions(rollouts_per_s=40, num_tokens=4, max_batch=8))
    benches: list[Bench] = []
    ready = trio.Event()

    def on_event(event: EngineEvent) -> None:
        nonlocal ready
        is_ready = isinstance(event, EngineReady)
        for bench in benches:
            if not is_ready:
                bench.life.happened(EngineDied(event.why))  # type: ignore[union-attr]
            bench.worker.engine_changed()
        if is_ready:
            ready.set()

    rng = random.Random(0)
    async with (
        open_engine(spec, log_path=tmp_path / "engine.log", on_event=on_event) as engine,
        open_bench(FakeLearner(next_heartbeat_s=0.1), real_engine=engine) as bench,
    ):
        benches.append(bench)
        learner = bench.learner
        with trio.fail_after(240):
            await ready.wait()
            bench.policies.hold(0, weights=policy.weights_dir, assets=policy.assets_dir)
            bench.worker.engine_changed()
            for _ in range(NUM_KILLS):
                while engine.applied_version is None or not bench.worker.num_rollouts_in_hand:
                    if not learner.num_leases:
                        learner.give(1)
                    await trio.sleep(0.01)
                await trio.sleep(rng.uniform(0, 0.2))
                ready = trio.Event()
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
                await ready.wait()
            num_before = len(learner.rollouts)
            learner.give(3)
            while (  # noqa: ASYNC110
                bench.worker.num_rollouts_in_hand or learner.num_leases or open_leases(learner)
            ):
                await trio.sleep(0.05)
        num_restarts = engine.num_restarts
        tally = bench.worker.tally

    made = {(r.group_id, r.sample_index) for r in learner.rollouts}
    assert num_restarts == NUM_KILLS
    assert len(learner.rollouts) > num_before
    # Each lease ended once: with all of its rollouts, or handed back.
    assert len({each.lease_id for each in learner.returned}) == len(learner.returned)
    assert open_leases(learner) == []
    assert len(learner.rollouts) == len(made) == tally.num_accepted


def open_leases(learner: FakeLearner) -> list[Lease]:
    """Return those that were neither answered in full nor handed back."""
    made = {(r.group_id, r.sample_index) for r in learner.rollouts}
    given_back = {each.lease_id for each in learner.returned}
    return [
        lease
        for lease in learner.granted
        if lease.lease_id not in given_back
        and not {(g.group_id, s.index) for g in lease.groups for s in g.samples} <= made
    ]
