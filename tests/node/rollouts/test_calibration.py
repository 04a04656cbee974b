"""A node that stands by times its engine once, and says so; one that works does not."""

import pytest
import trio
from trio.testing import MockClock

from node.engine.base import EngineDownError
from node.rollouts.calibration import Calibration
from protocols.heartbeat import Directive
from protocols.ids import PolicyVersion
from protocols.sampling import SamplingParams
from tests.node.bench import open_bench
from tests.node.fakes import SAMPLING, FakeEngine, FakeLearner


def engine(**options: object) -> FakeEngine:
    return FakeEngine(applied_version=PolicyVersion(0), **options)  # type: ignore[arg-type]


async def test_a_fast_engine_is_timed_with_as_many_at_once_as_it_works_on(
    autojump_clock: MockClock,
) -> None:
    fast = engine(seconds_per_call=0.1)
    trial = Calibration(fast, max_batch=8)

    await trial.run(SAMPLING)

    assert fast.called_with == [(0, 1), (0, 8)]
    assert trial.tokens_per_s == pytest.approx(8 * 2 / 0.1)


async def test_a_slow_engine_is_not_kept_busy_for_long(autojump_clock: MockClock) -> None:
    slow = engine(seconds_per_call=30.0)
    trial = Calibration(slow, max_batch=64)

    await trial.run(SamplingParams(1.0, 100_000, ()))

    assert slow.called_with == [(0, 1)]
    assert trial.tokens_per_s == pytest.approx(2 / 30)
    assert trial.is_done


async def test_an_engine_that_refuses_is_not_asked_again(autojump_clock: MockClock) -> None:
    trial = Calibration(engine(refuses_work=True), max_batch=8)

    await trial.run(SAMPLING)

    assert (trial.is_done, trial.tokens_per_s) == (True, None)


async def test_an_engine_that_dies_may_be_tried_again(autojump_clock: MockClock) -> None:
    trial = Calibration(engine(is_down=True), max_batch=8)

    with pytest.raises(EngineDownError):
        await trial.run(SAMPLING)

    assert not trial.is_done


async def test_a_node_that_stands_by_tells_the_learner_what_its_engine_did(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(FakeLearner(directive=Directive.STANDBY)) as bench:
        bench.policies.hold(0)
        with trio.fail_after(30):
            while bench.worker.calibrated_tokens_per_s is None:  # noqa: ASYNC110
                await trio.sleep(0.1)
        calls = list(bench.engine.called_with)
        for version in range(1, 20):
            bench.policies.hold(version)
            await trio.sleep(1)

    assert calls == [(0, 1), (0, 2)]
    assert bench.engine.called_with == calls
    assert bench.learner.beats[-1].calibrated_tokens_per_s == pytest.approx(4.0)


async def test_versions_that_come_all_the_time_do_not_put_the_trial_off(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(FakeLearner(directive=Directive.STANDBY)) as bench:
        for version in range(10):
            bench.policies.hold(version)
            await trio.sleep(1)

    assert bench.worker.calibrated_tokens_per_s is not None


async def test_a_node_that_works_is_measured_by_its_work_alone(autojump_clock: MockClock) -> None:
    async with open_bench() as bench:
        bench.policies.hold(0)
        bench.learner.give(3)
        with trio.fail_after(60):
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 3 * 8)
        await trio.sleep(20)

    assert [number for _, number in bench.engine.called_with] == [8, 8, 8]
    assert bench.worker.calibrated_tokens_per_s is None


async def test_a_node_activated_during_its_trial_works_right_after(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(FakeLearner(directive=Directive.STANDBY)) as bench:
        bench.engine.seconds_per_call = 10
        bench.policies.hold(0)
        while not bench.engine.called_with:  # noqa: ASYNC110
            await trio.sleep(0.1)
        bench.learner.directive = Directive.ACTIVE
        bench.learner.give(1)
        with trio.fail_after(30):
            await bench.learner.until(lambda: len(bench.learner.rollouts) == 8)

    assert bench.engine.called_with == [(0, 1), (0, 8)]
