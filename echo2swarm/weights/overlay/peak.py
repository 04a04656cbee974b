"""What a link carries when it is busy, from pieces of transfers that are seen late; pure.

A link is idle most of the time, and a transfer seldom needs all of it: a mean would say
little. So bytes are counted in short slots of time; the slots of one *episode* (a broadcast,
mostly) give the rate that a quarter of its bytes went faster than; and the best episode
counts, slowly losing weight against newer ones. Therefore

- waiting changes nothing: only seconds in which something flowed make an estimate older;
- a transfer that did not fill the link does not pull the estimate down by itself;
- who is behind less than a quarter of the bytes can't push it up by lying about times.
"""

from dataclasses import dataclass, field
from math import exp2
from typing import Final

SLOT_S: Final = 0.5
GAP_S: Final = 5.0
"""An episode ends when nothing flowed for this long."""
MAX_EPISODE_S: Final = 60.0
SHARE: Final = 0.75
"""Of an episode's bytes, this share flowed at its rate or slower."""
HALF_LIFE_S: Final = 300.0
"""Of busy time, after which an old best counts half."""
MIN_EPISODE_BYTES: Final = 32 * 1024
"""Less than this, in one episode, says nothing about a link."""


@dataclass(slots=True)
class _Episode:
    first_slot: int
    last_slot: int
    num_bytes: dict[int, float] = field(default_factory=dict)

    def rate(self) -> float | None:
        """Return the rate in bytes per second; None if too little flowed."""
        total = sum(self.num_bytes.values())
        if total < MIN_EPISODE_BYTES:
            return None
        slower = 0.0
        for num_bytes in sorted(self.num_bytes.values()):
            slower += num_bytes
            if slower >= SHARE * total:
                return num_bytes / SLOT_S
        raise AssertionError("the last slot has all bytes at its rate or slower")

    def worn(self, best: float) -> float:
        """Return what an earlier best counts beside this episode."""
        busy_s: float = len(self.num_bytes) * SLOT_S
        return best * exp2(-busy_s / HALF_LIFE_S)


class PeakRate:
    """One direction of one link."""

    def __init__(self) -> None:
        self._best: float | None = None
        self._episode: _Episode | None = None
        self._total: float | None = None
        """The estimate, until something new comes."""

    def flowed(self, num_bytes: float, *, start_s: float, end_s: float) -> None:
        """Note that bytes flowed, evenly, between two moments."""
        first, last = int(start_s // SLOT_S), int(end_s // SLOT_S)
        episode = self._episode
        if episode is None or self._is_new(episode, first, last):
            self._fold()
            episode = self._episode = _Episode(first, last)
        span_s = max(end_s - start_s, 1e-9)
        for slot in range(max(first, episode.first_slot), last + 1):
            begin_s = max(start_s, slot * SLOT_S)
            until_s = min(end_s, (slot + 1) * SLOT_S)
            share = (until_s - begin_s) / span_s if end_s > start_s else 1.0
            if share > 0:
                episode.num_bytes[slot] = episode.num_bytes.get(slot, 0.0) + num_bytes * share
        episode.last_slot = max(episode.last_slot, last)
        self._total = None

    def measured(self, bytes_per_s: float) -> None:
        """Take in what a measurement on purpose has shown: at least so much is possible."""
        self._fold()
        self._best = max(self._best or 0.0, bytes_per_s)

    def bytes_per_s(self) -> float | None:
        """Return the estimate; None while there is none."""
        if self._total is None:
            self._total = self._with_episode()
        return self._total

    def _is_new(self, episode: _Episode, first: int, last: int) -> bool:
        if last < episode.first_slot:
            return False  # Late news of an episode before: not worth to begin another.
        is_apart = (first - episode.last_slot) * SLOT_S > GAP_S
        return is_apart or (last - episode.first_slot) * SLOT_S > MAX_EPISODE_S

    def _with_episode(self) -> float | None:
        if self._episode is None:
            return self._best
        rate = self._episode.rate()
        if rate is None or self._best is None:
            return self._best if rate is None else rate
        return max(rate, self._episode.worn(self._best))

    def _fold(self) -> None:
        self._best, self._episode, self._total = self._with_episode(), None, None
