"""Hours of the day in which a node may work: local wall-clock time, as its owner reads it.

A day has the hours that its clock shows: where a change to summer time skips some, they are
skipped; where an hour comes twice, it counts twice. What holds follows from the time now and
nothing else, so a clock that is set is right again at once.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from echo2swarm.system.errors import UsageError

MINUTES_PER_DAY: Final = 24 * 60
_RANGE: Final = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*")
_LOOK_AHEAD_MINUTES: Final = 2 * MINUTES_PER_DAY
"""Two days: every range begins and ends within one, whatever the clock does."""

LocalTime = Callable[[float], datetime]
"""Returns the local time at a Unix time; :meth:`datetime.fromtimestamp` of the system's zone."""


@dataclass(frozen=True, slots=True)
class HourRange:
    """From one minute of the day to another, which may be on the next day."""

    begin_minute: int
    end_minute: int
    """Not included."""

    def includes(self, minute: int) -> bool:
        """Return whether the range includes a minute of the day."""
        if self.begin_minute < self.end_minute:
            return self.begin_minute <= minute < self.end_minute
        return minute >= self.begin_minute or minute < self.end_minute

    def __str__(self) -> str:
        return f"{_clock(self.begin_minute)}-{_clock(self.end_minute)}"


Hours = tuple[HourRange, ...]
"""No range at all stands for all hours."""


def parse_hours(text: str) -> Hours:
    """Return ranges like ``22:00-07:00,12:00-13:30``; empty, or ``always``, is no limit.

    Raises:
        UsageError: it is no such text.
    """
    if text.strip().lower() in {"", "always"}:
        return ()
    return tuple(_parse_range(part) for part in text.split(","))


def format_hours(hours: Hours) -> str:
    """Return what :func:`parse_hours` reads."""
    return ",".join(str(each) for each in hours) or "always"


def is_within(hours: Hours, local: datetime) -> bool:
    """Return whether a local time is in one of the ranges, or there are none."""
    minute = 60 * local.hour + local.minute
    return not hours or any(each.includes(minute) for each in hours)


def next_change_unix_s(hours: Hours, now_unix_s: float, local_at: LocalTime) -> float | None:
    """Return when :func:`is_within` changes next; None if it never does.

    Looks at each minute to come: so it is right wherever and whenever clocks change.
    """
    is_now = is_within(hours, local_at(now_unix_s))
    minute_unix_s = now_unix_s - now_unix_s % 60
    for number in range(1, _LOOK_AHEAD_MINUTES + 1):
        at_unix_s = minute_unix_s + 60 * number
        if is_within(hours, local_at(at_unix_s)) is not is_now:
            return at_unix_s
    return None


def _parse_range(text: str) -> HourRange:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise UsageError(f"hours {text.strip()!r} are not of the form 22:00-07:00")
    begin, end = (_minute(*found.group(i, i + 1)) for i in (1, 3))
    if begin == end % MINUTES_PER_DAY:
        raise UsageError(f"hours {text.strip()!r} begin and end at once; leave them out for always")
    return HourRange(begin % MINUTES_PER_DAY, end % MINUTES_PER_DAY)


def _minute(hour: str, minute: str) -> int:
    total = 60 * int(hour) + int(minute)
    if int(minute) >= 60 or total > MINUTES_PER_DAY:
        raise UsageError(f"there is no {hour}:{minute} o'clock")
    return total


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
