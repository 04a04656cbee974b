"""What a link carries when it is busy: idle times, slow times and single liars change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.weights.overlay.peak import GAP_S, HALF_LIFE_S, MIN_EPISODE_BYTES, SLOT_S, PeakRate


def busy(peak: PeakRate, rate: float, *, start_s: float, for_s: float) -> None:
    """Let the link carry ``rate``, told of every two seconds."""
    at_s = start_s
    while at_s < start_s + for_s:
        end_s = min(at_s + 2, start_s + for_s)
        peak.flowed(rate * (end_s - at_s), start_s=at_s, end_s=end_s)
        at_s = end_s


@given(st.floats(2e5, 1e9), st.floats(2, 50), st.floats(0, 1e6))
def test_a_steady_flow_is_measured(rate: float, for_s: float, start_s: float) -> None:
    peak = PeakRate()
    busy(peak, rate, start_s=start_s, for_s=for_s)

    assert peak.bytes_per_s() == pytest.approx(rate, rel=1e-3)


def test_nothing_is_known_of_a_link_that_carried_next_to_nothing() -> None:
    peak = PeakRate()
    peak.flowed(MIN_EPISODE_BYTES - 1, start_s=0, end_s=0.01)

    assert peak.bytes_per_s() is None


def test_waiting_and_slow_transfers_leave_the_estimate_alone() -> None:
    peak = PeakRate()
    busy(peak, 1e6, start_s=0, for_s=20)
    busy(peak, 1e4, start_s=1e5, for_s=20)

    assert peak.bytes_per_s() == pytest.approx(1e6, rel=0.1)


def test_a_link_that_has_become_slow_is_seen_after_some_busy_minutes() -> None:
    peak = PeakRate()
    busy(peak, 1e6, start_s=0, for_s=20)
    busy(peak, 1e5, start_s=100, for_s=4 * HALF_LIFE_S)

    assert peak.bytes_per_s() == pytest.approx(1e5, rel=0.3)


def test_a_link_that_has_become_fast_is_seen_in_its_first_transfer() -> None:
    peak = PeakRate()
    busy(peak, 1e6, start_s=0, for_s=20)
    busy(peak, 5e6, start_s=100, for_s=6)

    assert peak.bytes_per_s() == pytest.approx(5e6, rel=0.1)


def test_flows_to_several_at_once_add_up() -> None:
    peak = PeakRate()
    for at_s in range(0, 20, 2):
        for shift_s in (0.0, 0.7, 1.4):
            peak.flowed(2e6, start_s=at_s + shift_s, end_s=at_s + 2 + shift_s)

    assert peak.bytes_per_s() == pytest.approx(3e6, rel=0.05)


def test_who_has_less_than_a_quarter_of_the_bytes_cannot_push_the_rate_up() -> None:
    peak = PeakRate()
    busy(peak, 1e6, start_s=0, for_s=20)
    peak.flowed(6e6, start_s=10.0, end_s=10.25)

    assert peak.bytes_per_s() == pytest.approx(1e6, rel=0.01)


def test_a_measurement_on_purpose_counts_at_once_and_ages_like_the_rest() -> None:
    peak = PeakRate()
    peak.measured(4e6)
    assert peak.bytes_per_s() == 4e6
    busy(peak, 1e6, start_s=0, for_s=HALF_LIFE_S)

    assert peak.bytes_per_s() == pytest.approx(2e6, rel=0.1)


@given(
    st.lists(
        st.tuples(st.floats(1, 1e9), st.floats(0, 1e4), st.floats(0, 30)), min_size=1, max_size=30
    )
)
def test_no_order_of_news_breaks_it_or_makes_more_bytes_than_came(
    flows: list[tuple[float, float, float]],
) -> None:
    peak = PeakRate()
    for num_bytes, start_s, span_s in flows:
        peak.flowed(num_bytes, start_s=start_s, end_s=start_s + span_s)
        rate = peak.bytes_per_s()
        assert rate is None or 0 < rate <= sum(f[0] for f in flows) / SLOT_S * (1 + 1e-9)


def test_late_news_of_an_earlier_episode_is_let_go() -> None:
    peak = PeakRate()
    busy(peak, 1e6, start_s=1000, for_s=10)
    peak.flowed(1e9, start_s=1000 - 10 * GAP_S, end_s=1000 - 9 * GAP_S)

    assert peak.bytes_per_s() == pytest.approx(1e6, rel=0.01)
