"""The formulas against a simulation that shares nothing with them."""

import random
from dataclasses import replace
from math import ceil, log

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from echo2swarm.scheduling.capacity import (
    Delays,
    LearnerLoad,
    forecast,
    min_staleness,
    paper_rollouts_per_s,
    required_rollouts_per_s,
    stale_share,
)
from tests.echo2swarm.scheduling.capacity.event_sim import Setup, run

# The same swarms each time: how near a forecast is has no bound that holds for all.
slow = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def setups(draw: st.DrawFn) -> tuple[Setup, float]:
    """A swarm of like machines, and how long one rollout holds one of them."""
    bound = draw(st.integers(0, 6))
    work_s = draw(st.floats(0.05, 3))
    setup = Setup(
        per_step=draw(st.sampled_from([8, 16, 32, 64])),
        train_s=draw(st.floats(0.3, 3)),
        bound=bound,
        every=draw(st.integers(1, bound + 1)),
        broadcast_s=draw(st.one_of(st.just(0.0), st.floats(0, 4))),
        trip_s=draw(st.one_of(st.just(0.0), st.floats(0, 1))),
        work_s=lambda: work_s,
        num_machines=draw(st.integers(1, 40)),
        num_steps=160,
    )
    return replace(setup, pause_s=setup.broadcast_s * draw(st.sampled_from([0, 0, 0.5, 1]))), work_s


def described(setup: Setup, work_s: float) -> tuple[LearnerLoad, Delays, float]:
    """The same in the words of the formulas."""
    workload = LearnerLoad(
        rollouts_per_step=setup.per_step,
        train_s=setup.train_s,
        max_staleness=setup.bound,
        publish_every=setup.every,
        pause_s=setup.pause_s,
    )
    delays = Delays(
        broadcast_s=setup.broadcast_s, rollout_s=work_s + setup.trip_s, occupied_s=work_s
    )
    return workload, delays, setup.num_machines / work_s


@slow
@given(setups())
def test_no_swarm_is_slower_than_the_bound_says(drawn: tuple[Setup, float]) -> None:
    setup, work_s = drawn
    workload, delays, supply = described(setup, work_s)

    seen = run(setup)

    assert seen.period_s <= 1.02 * forecast(workload, delays, rollouts_per_s=supply).bound_s


@slow
@given(setups())
def test_the_forecast_is_near_what_happens(drawn: tuple[Setup, float]) -> None:
    setup, work_s = drawn
    setup = replace(setup, pause_s=0.0)  # Whether a machine at work pauses is another matter.
    workload, delays, supply = described(setup, work_s)

    seen = run(setup)

    found = forecast(workload, delays, rollouts_per_s=supply)
    assert abs(setup.train_s / seen.period_s - found.utilisation) < 0.12
    assert 0.8 * found.period_s < seen.period_s < 1.2 * found.period_s


@slow
@given(setups(), st.integers(1, 4))
def test_nobody_starves_and_nothing_is_wasted_once_bound_and_supply_are_enough(
    drawn: tuple[Setup, float], every: int
) -> None:
    setup, work_s = drawn
    num_machines = ceil(setup.per_step / setup.train_s * work_s * (1 + 1e-9))
    setup = replace(setup, every=every, bound=every + 20, num_machines=num_machines, pause_s=0.0)
    workload, delays, supply = described(setup, work_s)
    smallest = min_staleness(workload, delays)
    assume(smallest <= 12)
    # All at the same moment would be waves of rollouts, not a rate.
    setup = replace(setup, bound=smallest, num_steps=80, joining_s=work_s)
    workload, delays, supply = described(setup, work_s)
    assert supply >= required_rollouts_per_s(workload, delays) * (1 - 1e-9)

    seen = run(setup)

    assert seen.longest_wait_s < 1e-6
    assert seen.num_expired == 0
    assert abs(seen.period_s - setup.train_s) < 1e-6


@slow
@given(setups(), st.floats(0.4, 0.95))
def test_less_than_is_required_is_less_than_busy(drawn: tuple[Setup, float], share: float) -> None:
    setup, work_s = drawn
    num_machines = int(setup.per_step / setup.train_s * work_s * share)
    assume(num_machines >= 1)
    setup = replace(setup, num_machines=num_machines)
    workload, delays, supply = described(setup, work_s)
    found = forecast(workload, delays, rollouts_per_s=supply)

    seen = run(setup)

    assert found.supply_slack < 0
    assert seen.period_s > setup.train_s * 1.01


def spread_setup(
    seed: int, *, variation: float, share: float, bound: int = 2, every: int = 1, paced: bool = True
) -> Setup:
    """200 machines-worth of lognormal rollouts of mean 1 s with this coefficient of variation."""
    rng = random.Random(seed)
    sigma = log(1 + variation**2) ** 0.5
    num_machines = 64
    train_s = 64 * 2 / (num_machines / share)
    return Setup(
        per_step=128,
        train_s=train_s,
        bound=bound,
        every=every,
        broadcast_s=0.3,
        trip_s=0.05,
        work_s=lambda: rng.lognormvariate(-(sigma**2) / 2, sigma),
        num_machines=num_machines,
        is_paced=paced,
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_tenth_more_pays_for_the_spread_of_rollouts(seed: int) -> None:
    tight = spread_setup(seed, variation=0.5, share=1.0)
    ample = spread_setup(seed, variation=0.5, share=1.1)

    assert run(tight).period_s < 1.08 * tight.train_s
    assert run(ample).period_s < 1.02 * ample.train_s


def test_half_as_much_again_without_pacing_wastes_a_third() -> None:
    open_loop = run(spread_setup(5, variation=0.2, share=1.5, paced=False))
    paced = run(spread_setup(5, variation=0.2, share=1.5))

    assert 0.28 < open_loop.num_expired / open_loop.num_made < 0.40
    assert paced.num_expired / paced.num_made < 0.02


@settings(max_examples=40, deadline=None)
@given(
    bound=st.integers(0, 5),
    every=st.integers(1, 6),
    train_s=st.floats(0.5, 2),
    broadcast_s=st.floats(0, 5),
    times_s=st.lists(st.floats(0, 5), min_size=1, max_size=5),
)
def test_the_share_that_is_late_is_what_a_clock_counts(
    bound: int, every: int, train_s: float, broadcast_s: float, times_s: list[float]
) -> None:
    assume(every <= bound + 1)
    workload = LearnerLoad(
        rollouts_per_step=8, train_s=train_s, max_staleness=bound, publish_every=every
    )
    delays = Delays(broadcast_s=broadcast_s, rollout_s=max(times_s), rollout_times_s=tuple(times_s))
    begun_s = 1000 * train_s
    num_late = num_all = 0
    for i in range(400):
        start_s = begun_s + i / 400 * every * train_s
        step_when_published = int((start_s - broadcast_s) // (every * train_s)) * every
        for time_s in times_s:
            num_all += 1
            next_update_s = ceil((start_s + time_s) / train_s) * train_s
            num_late += round(next_update_s / train_s) - step_when_published > bound

    assert abs(num_late / num_all - stale_share(workload, delays)) < 0.02


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_the_papers_rule_is_not_enough_when_versions_are_rare(steps: int) -> None:
    work_s = 0.2
    setup = Setup(
        per_step=64,
        train_s=1.0,
        bound=steps,
        every=steps,
        broadcast_s=0.8,
        trip_s=0.1,
        work_s=lambda: work_s,
        num_machines=23,
    )
    workload, delays, supply = described(setup, work_s)
    assert supply > paper_rollouts_per_s(workload, delays)

    assert run(setup).period_s > 1.05 * setup.train_s


def test_engines_that_sample_nothing_while_they_load_need_to_be_more() -> None:
    setup = Setup(
        per_step=60,
        train_s=2.0,
        bound=4,
        every=1,
        broadcast_s=1.0,
        trip_s=0.0,
        work_s=lambda: 0.1,
        num_machines=3,
        pause_s=1.0,
    )
    workload, delays, supply = described(setup, 0.1)
    assert supply == pytest.approx(setup.per_step / setup.train_s)
    found = forecast(workload, delays, rollouts_per_s=supply)
    assert run(setup).period_s == pytest.approx(found.period_s, rel=0.04)
    assert found.period_s == pytest.approx(3.0)

    enough = required_rollouts_per_s(workload, delays)
    assert enough == pytest.approx(2 * supply)
    assert run(replace(setup, num_machines=6)).period_s == pytest.approx(2.0, rel=0.02)
    assert run(replace(setup, num_machines=6, every=2, bound=5)).longest_wait_s == 0
