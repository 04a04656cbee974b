"""How often peers tell what they hold."""

import pytest

from echo2swarm.weights.transfer.have_interval import MAX_NEWS_S, MIN_NEWS_S, news_s


@pytest.mark.parametrize(
    ("since_s", "wait_s"), [(0, MIN_NEWS_S), (5, 0.05), (10, 0.1), (25, 0.25), (1e6, MAX_NEWS_S)]
)
def test_news_waits_a_hundredth_of_the_time_so_far_within_bounds(
    since_s: float, wait_s: float
) -> None:
    assert news_s(since_s) == pytest.approx(wait_s)
