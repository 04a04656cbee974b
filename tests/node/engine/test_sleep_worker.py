"""The engine that waits: its times."""

import math

import pytest

from node.engine.messages import Generate
from node.engine.options import SleepOptions
from node.engine.sleep_worker import SleepEngine
from protocols.leases import LeasedGroup, SampleSpec
from protocols.sampling import SamplingParams


def call(seed: int) -> Generate:
    group = LeasedGroup(0, b"\0\0\0\0", (SampleSpec(index=0, seed=seed),))
    return Generate(groups=(group,), sampling=SamplingParams(1.0, 4, (0,)))


def factors(spread: float) -> list[float]:
    engine = SleepEngine(SleepOptions(spread=spread))
    return [engine._factor(call(seed)) for seed in range(4000)]


def test_without_spread_every_call_takes_as_long_as_said() -> None:
    assert set(factors(0.0)) == {1.0}


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
def test_spread_is_the_coefficient_of_variation_around_the_same_mean(spread: float) -> None:
    values = factors(spread)
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    assert mean == pytest.approx(1.0, abs=0.06)
    assert math.sqrt(variance) / mean == pytest.approx(spread, rel=0.15)
    assert values == factors(spread)
