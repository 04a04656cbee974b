"""What the learner's own measurements say of its pace."""

from math import nan

import pytest

from echo2swarm.scheduling.capacity import BindingLimit
from echo2swarm.system.rates import LearnerPhase, Timeline
from learner.config import RolloutConfig
from learner.state.progress import LearnerProgress


def progress(*, max_staleness: int = 2) -> LearnerProgress:
    table = RolloutConfig(
        prompts_per_step=2, group_size=5, max_staleness=max_staleness, headroom=0.5
    )
    return LearnerProgress(
        step=0, num_steps=10, started_s=0.0, rollouts=table, timeline=Timeline(0.0)
    )


def test_the_need_is_known_once_an_update_was_timed() -> None:
    made = progress()
    before = made.needed_rollouts_per_s(0.0)
    made.train_s.add(2.0, 0.0)

    assert before is None
    assert made.needed_rollouts_per_s(0.0) == pytest.approx(10 / 2 * 1.5)


def test_where_no_supply_is_enough_there_is_no_need_to_state() -> None:
    made = progress(max_staleness=0)
    made.train_s.add(2.0, 0.0)

    assert made.needed_rollouts_per_s(0.0) is None


def test_delays_are_the_slow_ones_that_were_measured() -> None:
    made = progress()
    for i in range(100):
        made.broadcast_s.add(float(i), 0.0)
        made.rollout_s.add(float(2 * i), 0.0)

    found = made.delays(1.0)

    assert (found.broadcast_s, found.rollout_s) == (95.0, 190.0)
    assert found.rollout_times_s[0] < 60 < found.rollout_times_s[-1]


def test_before_anything_was_measured_delays_are_none() -> None:
    found = progress().delays(0.0)

    assert (found.broadcast_s, found.rollout_s) == (0.0, 0.0)
    assert progress().forecast(0.0, rollouts_per_s=5.0) is None


def test_a_forecast_is_made_of_what_was_measured() -> None:
    made = progress()
    made.train_s.add(2.0, 0.0)

    short = made.forecast(0.0, rollouts_per_s=2.5)

    assert short is not None
    assert (short.period_s, short.binds) == (4.0, BindingLimit.SUPPLY)


def test_a_forecast_allows_for_what_the_learner_does_between_updates() -> None:
    made = progress()
    made.timeline.enter(LearnerPhase.TRAINING, 0.0)
    made.timeline.enter(LearnerPhase.PUBLISHING, 8.0)
    made.timeline.enter(LearnerPhase.CHECKPOINTING, 9.0)
    made.timeline.enter(LearnerPhase.WAITING, 10.0)
    made.train_s.add(8.0, 8.0)

    found = made.workload(20.0)

    assert found is not None
    assert found.overhead_s == pytest.approx(2.0)


def test_times_that_are_none_do_not_get_in() -> None:
    made = progress()
    made.train_s.add(nan, 0.0)
    made.broadcast_s.add(-1.0, 0.0)

    assert made.workload(0.0) is None
    assert made.delays(0.0).broadcast_s == 0.0


def test_an_update_that_took_no_time_says_nothing_yet() -> None:
    made = progress()
    made.train_s.add(0.0, 0.0)

    assert made.workload(0.0) is None
    assert made.needed_rollouts_per_s(0.0) is None


def test_refused_and_dropped_rollouts_are_counted_by_their_share() -> None:
    made = progress()
    assert (made.refused_share(0.0), made.dropped_share(0.0)) == (None, None)

    made.accepted.add(30, 1.0)
    made.refused.add(10, 2.0)
    made.dropped.add(6, 3.0)

    assert made.refused_share(4.0) == pytest.approx(0.25)
    assert made.dropped_share(4.0) == pytest.approx(0.2)


def test_more_dropped_than_accepted_lately_is_all_of_them() -> None:
    made = progress()
    made.accepted.add(1, 1.0)
    made.dropped.add(6, 3.0)

    assert made.dropped_share(4.0) == 1.0
