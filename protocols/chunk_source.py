"""One holder as its downloader sees it: what it was asked for, how quick it is, when it is silent.

Bookkeeping for :mod:`protocols.chunk_download`.
"""

from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from protocols.chunks import MAX_OUTSTANDING

_SMOOTHING: Final = 0.2
"""How much one chunk changes what is known of a holder's pace."""
_FIRST_OUTSTANDING: Final = 2
_MAX_PAUSE: Final = 20.0
"""A holder that takes this many times its usual pace for a chunk is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSettings:
    """The numbers in the rules of :mod:`protocols.chunk_download`."""

    min_outstanding: int = 1
    max_outstanding: int = MAX_OUTSTANDING
    silence_s: float = 30.0
    """A holder that was asked and sends nothing this long is silent; much less if it was quick."""
    min_silence_s: float = 5.0
    endgame_after_s: float = 0.7
    """So long, and twice the time in which the quickest holder sends a chunk."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_outstanding <= self.max_outstanding <= MAX_OUTSTANDING:
            raise ValueError(
                f"min_outstanding and max_outstanding must be 1 to {MAX_OUTSTANDING}, in order"
            )


@dataclass(slots=True)
class ChunkSource:
    """What is known of one holder."""

    has_hashes: bool
    chunks: dict[int, float] = field(default_factory=dict)
    """What it was asked for and has not answered, and when."""
    hashes_asked_s: float | None = None
    is_proven: bool = False
    num_refusals: int = 0
    last_arrival_s: float = -inf
    shortest_wait_s: float = inf
    """Of all chunks it sent: the round trip, and one chunk's time on the way."""
    pace_s: float | None = None
    """From one chunk to the next while it had requests, a moving average."""

    @property
    def oldest_asked_s(self) -> float:
        """When that was asked for which is waited for longest; ``inf`` if nothing is."""
        return next(iter(self.chunks.values()), inf)

    def arrived(self, asked_at_s: float, now_s: float) -> None:
        """Note that a chunk came which was asked for at ``asked_at_s``."""
        wait_s = now_s - asked_at_s
        self.shortest_wait_s = min(self.shortest_wait_s, wait_s)
        # Since it could begin with this one: when it had sent the last, or was asked.
        took_s = min(wait_s, now_s - self.last_arrival_s)
        before_s = took_s if self.pace_s is None else self.pace_s
        self.pace_s = before_s + _SMOOTHING * (took_s - before_s)
        self.last_arrival_s = now_s

    def deadline_s(self, settings: DownloadSettings) -> float:
        """Return when it will have been silent for too long; ``inf`` if nothing is asked of it."""
        silent_s = settings.silence_s
        if self.pace_s is not None:
            silent_s = min(silent_s, max(settings.min_silence_s, _MAX_PAUSE * self.pace_s))
        deadline_s = inf
        if self.chunks:
            deadline_s = max(self.last_arrival_s, self.oldest_asked_s) + silent_s
        if self.hashes_asked_s is not None:
            deadline_s = min(deadline_s, self.hashes_asked_s + settings.silence_s)
        return deadline_s

    def window(self, settings: DownloadSettings) -> int:
        """Return how many requests keep its link busy (Little's law).

        A holder that others ask too is busy anyway: then one is enough, and waits less long.
        """
        if self.pace_s is None:
            return max(_FIRST_OUTSTANDING, settings.min_outstanding)
        if self.shortest_wait_s >= settings.max_outstanding * self.pace_s:
            return settings.max_outstanding
        wanted = ceil(self.shortest_wait_s / self.pace_s + 0.5)
        return min(max(wanted, settings.min_outstanding), settings.max_outstanding)
