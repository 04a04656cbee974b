"""A cap on uploads: kept over any stretch of time, and never a dead end."""

import math

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from echo2swarm.weights.transfer.rate_limit import (
    BURST_S,
    MIN_BURST_BYTES,
    DownloadBudget,
    TokenBucket,
    UploadBudget,
)

RATES = st.floats(1e3, 1e9)
SIZES = st.integers(1, 4_000_000)


def send_all(bucket: TokenBucket, asks: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Let each ask come so long after the last, and wait; returns when each went out."""
    now_s, sent = 100.0, []
    for pause_s, num_bytes in asks:
        now_s += pause_s
        turn = bucket.take(num_bytes, now_s)
        for _ in range(3):
            now_s += bucket.wait_s(turn, now_s)
        assert bucket.wait_s(turn, now_s) == 0
        sent.append((now_s, num_bytes))
    return sent


@given(RATES, st.lists(st.tuples(st.floats(0, 100), SIZES), min_size=1, max_size=40))
def test_over_any_stretch_no_more_is_sent_than_rate_burst_and_one_message(
    rate: float, asks: list[tuple[float, int]]
) -> None:
    sent = send_all(TokenBucket(rate), asks)

    burst = max(rate * BURST_S, MIN_BURST_BYTES)
    for i, (start_s, _) in enumerate(sent):
        total = 0
        for end_s, num_bytes in sent[i:]:
            # The last message of a stretch goes out whole.
            assert total <= rate * (end_s - start_s) * (1 + 1e-6) + burst + 2
            total += num_bytes


@given(RATES, st.lists(SIZES, min_size=1, max_size=20))
def test_a_busy_line_is_used_to_its_cap(rate: float, sizes: list[int]) -> None:
    sent = send_all(TokenBucket(rate), [(0.0, size) for size in sizes])

    assert sent[-1][0] - 100.0 <= sum(sizes) / rate * (1 + 1e-6) + 1e-6


def test_a_cap_below_one_message_per_second_lets_messages_through_one_by_one() -> None:
    sent = send_all(TokenBucket(1000.0), [(0.0, 1_000_000)] * 3)

    assert [at_s for at_s, _ in sent] == pytest.approx([100.0, 1100.0, 2100.0])


def test_no_cap_never_waits_and_leaves_no_debt_to_a_later_one() -> None:
    bucket = TokenBucket()
    for _ in range(10):
        assert bucket.wait_s(bucket.take(10**9, 5.0), 5.0) == 0
    bucket.set_rate(1000.0, 5.0)

    assert bucket.wait_s(bucket.take(1, 5.0), 5.0) == 0


def test_a_changed_cap_changes_the_wait_of_those_who_wait_already() -> None:
    bucket = TokenBucket(1000.0)
    bucket.take(1_000_000, 0.0)
    turn = bucket.take(1000, 0.0)
    assert bucket.wait_s(turn, 0.0) == pytest.approx(1000.0)

    bucket.set_rate(100_000.0, 0.0)
    assert bucket.wait_s(turn, 0.0) == pytest.approx(10.0)
    bucket.set_rate(None, 0.0)
    assert bucket.wait_s(turn, 0.0) == 0.0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1000.0)
    bucket.take(1_000_000, 50.0)
    turn = bucket.take(1, 50.0)
    before_s = bucket.wait_s(turn, 51.0)

    assert bucket.wait_s(turn, 0.0) == before_s
    assert bucket.wait_s(turn, 51.0) == before_s


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_cap_that_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="cap"):
        UploadBudget(rate)


async def test_streams_share_one_cap_in_the_order_of_their_asking(
    autojump_clock: MockClock,
) -> None:
    budget, began_s, order = UploadBudget(1_000_000.0), trio.current_time(), []

    async def send(name: str) -> None:
        await budget.wait(500_000)
        order.append((name, round(trio.current_time() - began_s, 3)))

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(send, name)
            await trio.testing.wait_all_tasks_blocked()

    assert order == [("a", 0.0), ("b", 0.5), ("c", 1.0)]


async def test_a_sender_that_gives_up_does_not_delay_the_others(
    autojump_clock: MockClock,
) -> None:
    budget = UploadBudget(1000.0)
    await budget.wait(1000)
    with trio.move_on_after(0.1):
        await budget.wait(1_000_000)
    began_s = trio.current_time()
    await budget.wait(1000)

    assert trio.current_time() - began_s < 2


async def test_a_suggested_cap_never_replaces_the_owners(autojump_clock: MockClock) -> None:
    owned, free = UploadBudget(500.0), UploadBudget()
    for budget in (owned, free):
        budget.suggest(9000.0)

    assert (owned.bytes_per_s, free.bytes_per_s) == (500.0, 9000.0)
    assert (owned.max_bytes_per_s, free.max_bytes_per_s) == (500.0, None)


async def test_the_owner_may_change_their_cap_and_take_it_back(autojump_clock: MockClock) -> None:
    budget = UploadBudget(500.0)
    budget.allow(9000.0)
    assert (budget.bytes_per_s, budget.max_bytes_per_s) == (9000.0, 9000.0)
    budget.allow(None)
    budget.suggest(7000.0)
    assert (budget.bytes_per_s, budget.max_bytes_per_s) == (7000.0, None)

    began_s = trio.current_time()
    for _ in range(5):
        await budget.wait_for_owner(1_000_000)  # a suggestion is not theirs
    assert trio.current_time() == began_s


@given(RATES, st.lists(SIZES, min_size=1, max_size=30))
def test_no_more_is_asked_for_than_the_cap_on_downloads_allows(
    rate: float, sizes: list[int]
) -> None:
    budget, now_s = DownloadBudget(rate), 5.0
    for number, size in enumerate(sizes):
        for _ in range(3):
            now_s += budget.wait_s(now_s)
        assert budget.wait_s(now_s) == 0
        burst = max(rate * BURST_S, MIN_BURST_BYTES)
        assert sum(sizes[:number]) <= rate * (now_s - 5.0) * (1 + 1e-6) + burst + 2
        budget.asked(size, now_s)
    budget.allow(None, now_s)
    assert budget.wait_s(now_s) == 0
