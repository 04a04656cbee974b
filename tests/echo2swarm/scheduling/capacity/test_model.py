"""The formulas: what they say in plain cases, and what they say of nonsense."""

from math import inf, isclose, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.capacity import (
    BindingLimit,
    Delays,
    LearnerLoad,
    forecast,
    max_publish_every,
    min_staleness,
    paper_rollouts_per_s,
    provisioned_rollouts_per_s,
    required_rollouts_per_s,
    stale_share,
)

times = st.floats(0, 100)


def workload(*, bound: int = 2, every: int = 1, train_s: float = 10.0) -> LearnerLoad:
    return LearnerLoad(
        rollouts_per_step=128, train_s=train_s, max_staleness=bound, publish_every=every
    )


def delays(*, broadcast_s: float = 0.0, rollout_s: float = 0.0) -> Delays:
    return Delays(broadcast_s=broadcast_s, rollout_s=rollout_s)


def required(
    *, bound: int, every: int = 1, broadcast_s: float = 0.0, rollout_s: float = 0.0
) -> float:
    return required_rollouts_per_s(
        workload(bound=bound, every=every), delays(broadcast_s=broadcast_s, rollout_s=rollout_s)
    )


def test_with_slack_one_step_of_rollouts_per_update_is_enough() -> None:
    assert required(bound=2, broadcast_s=5, rollout_s=5) == 12.8


def test_a_slow_broadcast_asks_for_more() -> None:
    assert required(bound=1, broadcast_s=4, rollout_s=2) == 128 / 4


def test_a_learner_that_must_wait_for_its_own_version_cannot_be_kept_busy() -> None:
    assert required(bound=0) == inf
    assert required(bound=1, broadcast_s=6, rollout_s=4) == inf


def test_rarer_versions_leave_less_time() -> None:
    assert required(bound=2, every=2, broadcast_s=5) == 128 / 5


def test_headroom_is_on_top_of_what_is_required() -> None:
    assert isclose(provisioned_rollouts_per_s(workload(), delays(), headroom=0.1), 12.8 * 1.1)
    assert provisioned_rollouts_per_s(workload(bound=0), delays(), headroom=0.1) == inf


@given(bound=st.integers(0, 5), broadcast_s=times, rollout_s=times, more_s=st.floats(0, 10))
def test_slower_never_asks_for_less(
    bound: int, broadcast_s: float, rollout_s: float, more_s: float
) -> None:
    base = required(bound=bound, broadcast_s=broadcast_s, rollout_s=rollout_s)
    slower = required(bound=bound, broadcast_s=broadcast_s + more_s, rollout_s=rollout_s)

    assert slower >= base or isclose(slower, base)
    assert base >= 12.8


@pytest.mark.parametrize(
    ("every", "broadcast_s", "rollout_s", "smallest"),
    [(1, 0, 0, 1), (1, 5, 5, 2), (1, 5, 5.01, 3), (3, 5, 5, 4), (1, 20, 10, 4)],
)
def test_the_smallest_bound_covers_the_delays_in_whole_steps(
    every: int, broadcast_s: float, rollout_s: float, smallest: int
) -> None:
    found = min_staleness(
        workload(bound=9, every=every), delays(broadcast_s=broadcast_s, rollout_s=rollout_s)
    )

    assert found == smallest


def test_the_delays_that_just_fit_fit_in_spite_of_rounding() -> None:
    work = LearnerLoad(rollouts_per_step=8, train_s=0.1, max_staleness=9)

    assert min_staleness(work, delays(broadcast_s=0.1, rollout_s=0.2)) == 4


@given(every=st.integers(1, 5), broadcast_s=times, rollout_s=times, share=st.floats(1, 8))
def test_the_smallest_bound_is_enough_and_no_smaller_one_is(
    every: int, broadcast_s: float, rollout_s: float, share: float
) -> None:
    wait = delays(broadcast_s=broadcast_s, rollout_s=rollout_s)
    supply = 12.8 * share
    smallest = min_staleness(workload(bound=9, every=every), wait, rollouts_per_s=supply)

    if smallest >= every - 1:
        work = workload(bound=smallest, every=every)
        assert required_rollouts_per_s(work, wait) <= supply * (1 + 1e-6)
    if smallest > max(0, every - 1):
        work = workload(bound=smallest - 1, every=every)
        assert required_rollouts_per_s(work, wait) >= supply * (1 - 1e-6)


@given(bound=st.integers(0, 12), broadcast_s=times, rollout_s=times)
def test_the_largest_period_of_publication_is_allowed_and_no_larger_one(
    bound: int, broadcast_s: float, rollout_s: float
) -> None:
    wait = delays(broadcast_s=broadcast_s, rollout_s=rollout_s)
    largest = max_publish_every(workload(bound=bound), wait)

    if largest is not None:
        assert min_staleness(workload(bound=bound, every=largest), wait) <= bound
        assert min_staleness(workload(bound=bound, every=largest), wait) == bound
    else:
        assert min_staleness(workload(bound=bound), wait) > bound


def test_on_policy_every_part_of_a_step_follows_the_other() -> None:
    found = forecast(workload(bound=0), delays(broadcast_s=3, rollout_s=2), rollouts_per_s=128 / 5)

    assert found.period_s == 10 + 3 + 2 + 5
    assert found.utilisation == 0.5
    assert found.binds is BindingLimit.LATENCY
    assert found.required_rollouts_per_s == inf


def test_a_short_supply_sets_the_pace() -> None:
    found = forecast(workload(), delays(broadcast_s=1, rollout_s=1), rollouts_per_s=6.4)

    assert found.period_s == 20
    assert found.binds is BindingLimit.SUPPLY
    assert found.supply_slack == -0.5
    assert found.idle_share == 0


def test_what_nobody_needs_is_idle() -> None:
    found = forecast(workload(), delays(broadcast_s=1, rollout_s=1), rollouts_per_s=12.8 * 1.5)

    assert found.utilisation == 1
    assert found.binds is BindingLimit.LEARNER
    assert isclose(found.supply_slack, 0.5)
    assert isclose(found.idle_share, 1 / 3)


def test_latency_slack_is_how_much_longer_a_broadcast_may_take() -> None:
    work = workload(bound=2)
    found = forecast(work, delays(broadcast_s=2, rollout_s=1), rollouts_per_s=12.8)

    longer = delays(broadcast_s=2 + found.latency_slack_s, rollout_s=1)
    too_long = delays(broadcast_s=2.1 + found.latency_slack_s, rollout_s=1)
    assert forecast(work, longer, rollouts_per_s=12.8).binds is BindingLimit.LEARNER
    assert forecast(work, too_long, rollouts_per_s=12.8).binds is BindingLimit.LATENCY


def test_rollouts_that_begin_at_once_finish_sooner_than_one_after_the_other() -> None:
    # 64 places for 128 rollouts of 4 s: two waves.
    together = forecast(
        workload(bound=0),
        Delays(broadcast_s=0, rollout_s=5, occupied_s=4),
        rollouts_per_s=64 / 4,
    )

    assert together.period_s == 10 + 2 * 4 + 1
    assert together.bound_s == 10 + 8 + 5


def test_time_of_its_own_between_updates_is_no_use_to_the_learner() -> None:
    work = LearnerLoad(rollouts_per_step=128, train_s=8, overhead_s=2, max_staleness=2)
    found = forecast(work, delays(), rollouts_per_s=1000)

    assert found.period_s == 10
    assert found.utilisation == 0.8
    assert found.binds is BindingLimit.LEARNER


def test_without_supply_nothing_happens() -> None:
    found = forecast(workload(), delays(broadcast_s=1), rollouts_per_s=0)

    assert (found.period_s, found.utilisation, found.binds) == (inf, 0, BindingLimit.SUPPLY)
    assert forecast(workload(), delays(), rollouts_per_s=5e-324).period_s == inf


def test_the_papers_rule_of_the_design_asks_for_a_quarter_more() -> None:
    work = workload(bound=4, every=4)

    assert isclose(paper_rollouts_per_s(work, delays(broadcast_s=8)), 1.25 * 12.8)
    # It is not enough: the learner is a fifth slow even with half as much again.
    found = forecast(work, delays(broadcast_s=8, rollout_s=3), rollouts_per_s=1.5 * 12.8)
    assert 1.15 < found.period_s / 10 < 1.25


def test_the_papers_rule_knows_broadcasts_that_never_fit() -> None:
    work = workload(bound=4, every=2)

    assert paper_rollouts_per_s(work, delays(broadcast_s=20)) == inf
    assert paper_rollouts_per_s(work, delays(broadcast_s=21), generate_while_receiving=True) == inf
    assert paper_rollouts_per_s(work, delays(broadcast_s=20), generate_while_receiving=True) == 12.8
    assert paper_rollouts_per_s(work, delays(broadcast_s=9), generate_while_receiving=True) == 12.8


def test_what_comes_too_late_follows_from_the_spread_of_rollouts() -> None:
    work = workload(bound=2)
    short_and_long = Delays(broadcast_s=5, rollout_s=20, rollout_times_s=(1, 10, 20))

    # Of a window of 10 s, the first is never late, the second half of it, the third always.
    assert isclose(stale_share(work, short_and_long), (0 + 0.5 + 1) / 3)
    assert stale_share(work, delays(broadcast_s=5, rollout_s=10)) == 0.5


any_float = st.one_of(st.floats(), st.sampled_from([0.0, 5e-324, 1e308, 1e9, 1e-6]))


@given(
    count=st.integers(-2, 10**10),
    train_s=any_float,
    steps=st.tuples(st.integers(-2, 2000), st.integers(-2, 2000)),
    seconds=st.tuples(any_float, any_float, any_float),
    supply=any_float,
)
def test_nonsense_is_refused_and_never_divided_by(
    count: int,
    train_s: float,
    steps: tuple[int, int],
    seconds: tuple[float, float, float],
    supply: float,
) -> None:
    try:
        work = LearnerLoad(
            rollouts_per_step=count, train_s=train_s, max_staleness=steps[0], publish_every=steps[1]
        )
        wait = Delays(broadcast_s=seconds[0], rollout_s=seconds[1], occupied_s=seconds[2])
        found = forecast(work, wait, rollouts_per_s=supply)
        smallest = min_staleness(work, wait, rollouts_per_s=supply)
        max_publish_every(work, wait)
        paper_rollouts_per_s(work, wait)
    except ValueError:
        return
    assert smallest >= 0
    assert found.period_s >= work.train_s
    assert 0 <= found.utilisation <= 1
    assert 0 <= found.idle_share <= 1
    assert 0 <= found.wasted_share <= 1
    assert found.bound_s >= found.period_s * (1 - 1e-9) or found.period_s == inf
    assert found.supply_slack >= -1
    assert isfinite(found.latency_slack_s)


@pytest.mark.parametrize("bad", [nan, inf, -inf, -1.0])
def test_times_that_are_none_are_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match="train_s"):
        workload(train_s=bad)
    with pytest.raises(ValueError, match="broadcast_s"):
        delays(broadcast_s=bad)
    with pytest.raises(ValueError, match="rollout_s"):
        delays(rollout_s=bad)
    with pytest.raises(ValueError, match="rollout_times_s"):
        Delays(broadcast_s=1, rollout_s=1, rollout_times_s=(bad,))
    with pytest.raises(ValueError, match="occupied_s"):
        Delays(broadcast_s=1, rollout_s=1, occupied_s=bad)
    with pytest.raises(ValueError, match="rollouts_per_s"):
        forecast(workload(), delays(), rollouts_per_s=bad)
    with pytest.raises(ValueError, match="headroom"):
        provisioned_rollouts_per_s(workload(), delays(), headroom=bad)


def test_publishing_too_rarely_is_refused_with_what_would_do() -> None:
    with pytest.raises(ValueError, match=r"max_staleness \+ 1"):
        workload(bound=1, every=3)
