import random

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.backoff import Backoff


@given(st.integers())
def test_waits_double_up_to_the_cap_within_their_jitter(seed: int) -> None:
    backoff = Backoff(random.Random(seed), first_s=1, cap_s=10)

    waits_s = [backoff.next_s() for _ in range(7)]

    for wait_s, ceiling_s in zip(waits_s, (1, 2, 4, 8, 10, 10, 10), strict=True):
        assert ceiling_s / 2 <= wait_s <= ceiling_s


def test_two_peers_do_not_wait_in_step() -> None:
    one, other = Backoff(random.Random(1)), Backoff(random.Random(2))

    assert [one.next_s() for _ in range(3)] != [other.next_s() for _ in range(3)]


def test_after_a_reset_the_first_wait_is_short_again() -> None:
    backoff = Backoff(random.Random(1), first_s=1, cap_s=60)
    for _ in range(9):
        backoff.next_s()

    backoff.reset()

    assert backoff.next_s() <= 1
