"""Hours of the day: over midnight, where clocks change, and when the clock is set."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.system.errors import UsageError
from node.owner.hours import (
    HourRange,
    LocalTime,
    format_hours,
    is_within,
    next_change_unix_s,
    parse_hours,
)

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = parse_hours("22:00-07:00")


def local_in(zone: ZoneInfo) -> LocalTime:
    return lambda unix_s: datetime.fromtimestamp(unix_s, zone)


def unix(zone: ZoneInfo, *when: int) -> float:
    return datetime(*when, tzinfo=zone).timestamp()  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("hour", "minute", "is_in"),
    [(21, 59, False), (22, 0, True), (23, 59, True), (0, 0, True), (6, 59, True), (7, 0, False)],
)
def test_a_range_may_cross_midnight(hour: int, minute: int, is_in: bool) -> None:
    assert is_within(NIGHT, datetime(2026, 3, 1, hour, minute, 30)) is is_in


def test_several_ranges_add_up_and_none_is_always() -> None:
    hours = parse_hours(" 22:00-07:00 , 12:00-13:30 ")

    assert is_within(hours, datetime(2026, 3, 1, 13, 29))
    assert not is_within(hours, datetime(2026, 3, 1, 13, 30))
    assert is_within(parse_hours("always"), datetime(2026, 3, 1, 13, 30))
    assert next_change_unix_s((), 1e9, local_in(BERLIN)) is None


def test_midnight_can_be_written_both_ways() -> None:
    assert parse_hours("18:00-24:00") == (HourRange(18 * 60, 0),)
    assert is_within(parse_hours("18:00-24:00"), datetime(2026, 3, 1, 23, 59))
    assert not is_within(parse_hours("18:00-24:00"), datetime(2026, 3, 1, 0, 0))


@pytest.mark.parametrize(
    "text", ["22-7", "22:00", "25:00-07:00", "22:60-07:00", "10:00-10:00", "22:00-07:00;", "a-b"]
)
def test_what_is_no_range_is_refused_with_its_words(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hours(text)


def test_the_pause_ends_when_the_hour_comes() -> None:
    now = unix(BERLIN, 2026, 6, 1, 12, 0)

    assert next_change_unix_s(NIGHT, now, local_in(BERLIN)) == unix(BERLIN, 2026, 6, 1, 22, 0)


def test_an_hour_that_is_skipped_in_spring_shortens_the_night() -> None:
    # On 2026-03-29, 02:00 is followed by 03:00.
    began = unix(BERLIN, 2026, 3, 28, 22, 0)
    ends = next_change_unix_s(NIGHT, began, local_in(BERLIN))

    assert ends == unix(BERLIN, 2026, 3, 29, 7, 0)
    assert ends - began == 8 * 3600


def test_an_hour_that_comes_twice_in_autumn_counts_twice() -> None:
    # On 2026-10-25, 03:00 is followed by 02:00.
    began = unix(BERLIN, 2026, 10, 24, 22, 0)
    ends = next_change_unix_s(NIGHT, began, local_in(BERLIN))

    assert ends is not None
    assert ends - began == 10 * 3600


def test_a_range_inside_the_hour_that_is_skipped_does_not_happen_that_day() -> None:
    hours = parse_hours("02:15-02:45")
    before = unix(BERLIN, 2026, 3, 29, 1, 0)

    begins = next_change_unix_s(hours, before, local_in(BERLIN))

    assert begins == unix(BERLIN, 2026, 3, 30, 2, 15)


ranges = st.tuples(st.integers(0, 1439), st.integers(0, 1439)).filter(lambda r: r[0] != r[1])
times = st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC))


@given(pairs=st.lists(ranges, max_size=3), now=times)
def test_nothing_changes_before_the_next_change(
    pairs: list[tuple[int, int]], now: datetime
) -> None:
    hours = tuple(HourRange(*pair) for pair in pairs)
    change = next_change_unix_s(hours, now.timestamp(), local_in(BERLIN))

    is_now = is_within(hours, now.astimezone(BERLIN))
    if change is None:
        assert all(
            is_within(hours, (now + timedelta(hours=n)).astimezone(BERLIN)) is is_now
            for n in range(24)
        )
        return
    assert is_within(hours, datetime.fromtimestamp(change, BERLIN)) is not is_now
    assert is_within(hours, datetime.fromtimestamp(change - 1, BERLIN)) is is_now


@given(pairs=st.lists(ranges, max_size=3))
def test_hours_are_read_as_they_are_written(pairs: list[tuple[int, int]]) -> None:
    hours = tuple(HourRange(*pair) for pair in pairs)

    assert parse_hours(format_hours(hours)) == hours
