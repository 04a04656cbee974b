"""The least time a broadcast can take."""

import pytest

from echo2swarm.weights.overlay.broadcast_bound import broadcast_bound_s, star_s


@pytest.mark.parametrize(
    ("source", "up", "down", "bound_s"),
    [
        (10, [10, 10], [10, 10], 10),  # the source must send all of it
        (100, [100, 100], [100, 5], 20),  # the slowest must receive all of it
        (10, [0, 0, 0], [100, 100, 100], 30),  # nobody else sends: a star
        (20, [5, 5, 0], [100, 100, 100], 10),  # all copies through all uplinks
    ],
)
def test_the_bound_is_set_by_the_narrowest_of_three(
    source: float, up: list[float], down: list[float], bound_s: float
) -> None:
    assert (
        broadcast_bound_s(100, source_bytes_per_s=source, up_bytes_per_s=up, down_bytes_per_s=down)
        == bound_s
    )


def test_nobody_waits_for_a_broadcast_to_nobody() -> None:
    assert broadcast_bound_s(9, source_bytes_per_s=1, up_bytes_per_s=[], down_bytes_per_s=[]) == 0


@pytest.mark.parametrize(
    ("source", "up", "down"),
    [(0, [1], [1]), (1, [-1], [1]), (1, [1], [0]), (1, [1, 1], [1]), (float("nan"), [1], [1])],
)
def test_rates_that_make_no_sense_are_refused(
    source: float, up: list[float], down: list[float]
) -> None:
    with pytest.raises(ValueError, match=r"rates|uploads"):
        broadcast_bound_s(9, source_bytes_per_s=source, up_bytes_per_s=up, down_bytes_per_s=down)


def test_a_star_sends_everybody_a_copy() -> None:
    assert star_s(100, source_bytes_per_s=10, num_peers=7) == 70
