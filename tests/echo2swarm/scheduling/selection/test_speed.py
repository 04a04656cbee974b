"""Speed is what was accepted per second of work; a claim counts until there is some."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from echo2swarm.scheduling.selection.speed import FORGET_S, SILENT_S, Presence, Speed, SpeedMeter


def worked(*results: tuple[float, float], until_s: float | None = None) -> tuple[SpeedMeter, float]:
    """Return a meter that worked from 0 on, with (seconds, amount) of each result."""
    meter = SpeedMeter()
    meter.set_working(True, 0.0)
    for at_s, amount in results:
        meter.add(amount, at_s)
    return meter, until_s or results[-1][0]


def speed(meter: SpeedMeter, now_s: float, prior: float | None = None) -> Speed:
    found = meter.speed(now_s, prior_per_s=prior)
    assert found is not None
    return found


def test_nothing_is_known_before_there_is_a_result_or_a_claim() -> None:
    assert SpeedMeter().speed(0.0) is None
    claimed = speed(SpeedMeter(), 0.0, 3.0)
    assert (claimed.rollouts_per_s, claimed.is_prior, claimed.num_samples) == (3.0, True, 0)
    assert claimed.std == 1.5


def test_waiting_for_work_is_not_slowness() -> None:
    meter = SpeedMeter()
    for start_s in (0.0, 1000.0, 2000.0, 3000.0):
        meter.set_working(True, start_s)
        meter.add(20, start_s + 10)
        meter.set_working(False, start_s + 10)

    assert speed(meter, 5000.0).rollouts_per_s == pytest.approx(2.0)


def test_older_work_counts_less() -> None:
    meter, now_s = worked(*((10.0 * i, 10.0) for i in range(1, 30)))
    for _ in range(20):
        now_s += 10
        meter.add(30, now_s)

    assert 2.2 < speed(meter, now_s).rollouts_per_s < 3.0


def test_a_claim_is_worth_little_after_a_few_results_and_nothing_after_three() -> None:
    meter, now_s = worked((8.0, 8.0))
    assert speed(meter, now_s, 1000.0).rollouts_per_s < 2.0
    meter.add(8, 16.0)
    meter.add(8, 24.0)

    found = speed(meter, 24.0, 1000.0)
    assert (found.rollouts_per_s, found.is_prior, found.num_samples) == (1.0, False, 3)


def test_a_claim_fades_while_nothing_comes() -> None:
    meter = SpeedMeter()
    meter.set_working(True, 0.0)
    rates = [speed(meter, now_s, 10.0).rollouts_per_s for now_s in (0.0, 4.0, 40.0)]

    assert rates == [10.0, pytest.approx(4 / 4.4), pytest.approx(4 / 40.4)]


def test_who_works_and_delivers_nothing_is_worth_nothing_and_is_tried_again_much_later() -> None:
    meter = SpeedMeter()
    meter.set_working(True, 0.0)
    late_s = SILENT_S + 1
    assert speed(meter, late_s, 10.0).rollouts_per_s == 0.0
    meter.set_working(False, late_s)
    assert speed(meter, late_s + FORGET_S - 1, 10.0).rollouts_per_s == 0.0
    assert speed(meter, late_s + FORGET_S + 1, 10.0).rollouts_per_s == 10.0


def test_who_stops_delivering_becomes_slow() -> None:
    meter, now_s = worked(*((10.0 * i, 10.0) for i in range(1, 6)))

    assert speed(meter, now_s + 20).rollouts_per_s == pytest.approx(1.0)
    assert speed(meter, now_s + 120).rollouts_per_s < 0.4


def test_results_that_come_in_clumps_do_not_look_unsteady() -> None:
    clumps = [(10.0 * i + j / 100, 5.0) for i in range(1, 11) for j in range(2)]
    even = [(10.0 * i, 10.0) for i in range(1, 11)]
    uneven = [(10.0 * i, 2.0 if i % 2 else 18.0) for i in range(1, 11)]
    clumpy, steady, wild = (speed(*worked(*each)).std for each in (clumps, even, uneven))

    assert clumpy < 0.15
    assert steady < 0.1
    assert wild > 0.2


def test_what_rests_on_few_results_may_be_far_off() -> None:
    stds = [
        speed(*worked(*((10.0 * i, 10.0) for i in range(1, number + 1)))).std
        for number in (1, 2, 4, 16)
    ]

    assert stds == sorted(stds, reverse=True)
    assert stds[0] == 0.5


def test_a_steady_node_is_soon_known_and_an_unsteady_one_after_many_results() -> None:
    def is_sure(number: int, *, swing: float) -> bool:
        results = [(10.0 * i, 10.0 + (swing if i % 2 else -swing)) for i in range(1, number + 1)]
        return speed(*worked(*results)).is_sure

    assert [is_sure(n, swing=0.0) for n in (2, 4)] == [False, True]
    assert [is_sure(n, swing=9.0) for n in (4, 10, 16)] == [False, False, True]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["work", "rest", "add"]), st.floats(-5, 100)), max_size=30
    ),
    prior=st.none() | st.floats(0, 1e9),
)
@example(steps=[("work", 0.0), ("add", 6e-51)], prior=None)
@example(steps=[("work", 0.0), ("add", 2e-3)], prior=1e9)
def test_whatever_happens_the_answer_is_a_number(
    steps: list[tuple[str, float]], prior: float | None
) -> None:
    meter, now_s = SpeedMeter(), 0.0
    for what, after_s in steps:  # a clock that jumps back, too
        now_s += after_s
        if what == "add":
            meter.add(3, now_s)
        else:
            meter.set_working(what == "work", now_s)
        found = meter.speed(now_s, prior_per_s=prior)
        if found is not None:
            assert 0 <= found.rollouts_per_s < 1e12
            assert 0 <= found.std < 1e12


def test_presence_is_the_share_of_time_a_node_is_there() -> None:
    presence = Presence(0.0)
    assert presence.availability(0.0) == 1.0
    presence.set_here(False, 600.0)
    presence.set_here(False, 700.0)
    assert presence.availability(1200.0) == pytest.approx(1200 / 1800)
    presence.set_here(True, 1200.0)
    assert presence.availability(1800.0) == pytest.approx(1800 / 2400)
    assert presence.stay_s(1800.0) == pytest.approx((3600 + 1200) / 2)
