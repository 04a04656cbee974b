"""What is tried, and the least time it could take; pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.wan import Link

_HOME: Final = Link(up_mbit_per_s=25, down_mbit_per_s=25)
_AFAR: Final = replace(_HOME, delay_s=0.02)
_SLOW: Final = replace(_HOME, up_mbit_per_s=12.5, down_mbit_per_s=12.5)
_BEHIND_NAT: Final = replace(_HOME, accepts_inbound=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One swarm, what happens to it, and what it is held to."""

    name: str
    what: str
    learner: Link = _HOME
    peers: tuple[Link, ...] = (_HOME,) * 8
    size_bytes: int = 64_000_000
    num_killed: int = 0
    """The last so many peers are killed when half of all hold a third of the payload."""
    num_garbage: int = 0
    """The first so many peers answer requests with wrong bytes."""
    restarts_learner: bool = False
    """The learner's process is killed at the same moment, and started again."""
    at_most: float | None = None
    """The last peer's time, in multiples of the least."""
    at_most_of_torrent: float | None = None
    """The same, in multiples of libtorrent's."""
    max_copies: float | None = None
    """Copies of the payload that the learner sends."""
    is_measured_once: bool = False

    @property
    def has_baselines(self) -> bool:
        """Whether libtorrent and the star are tried too."""
        return self.at_most_of_torrent is not None

    @property
    def links(self) -> tuple[Link, ...]:
        """The learner's link, then the peers'."""
        return (self.learner, *self.peers)

    @property
    def least_s(self) -> float:
        """The least time in which any scheme could do it."""
        return least_s(self.size_bytes, self.learner, self.peers)

    @property
    def honest(self) -> tuple[int, ...]:
        """The peers that live to the end and serve what they should, by number."""
        return tuple(range(self.num_garbage, len(self.peers) - self.num_killed))


def least_s(size_bytes: int, source: Link, peers: Sequence[Link]) -> float:
    """Return T*, the time below which ``size_bytes`` cannot reach all ``peers``.

    The source must send everything once; the slowest downlink must take everything;
    and all uplinks together must carry it to each peer.
    """
    up_bytes_per_s = source.up_bytes_per_s + sum(each.up_bytes_per_s for each in peers)
    return max(
        size_bytes / source.up_bytes_per_s,
        size_bytes / min(each.down_bytes_per_s for each in peers),
        len(peers) * size_bytes / up_bytes_per_s,
    )


CASES: Final = (
    Case(
        name="plain",
        what="no delay",
        at_most=1.15,
        at_most_of_torrent=0.85,
        max_copies=1.25,
    ),
    Case(
        name="delay",
        what="80 ms round trip",
        learner=_AFAR,
        peers=(_AFAR,) * 8,
        at_most=1.25,
        at_most_of_torrent=0.75,
    ),
    Case(
        name="uneven",
        what="uplinks of 12.5 to 100 Mbit/s",
        peers=tuple(
            replace(_HOME, up_mbit_per_s=rate)
            for rate in (12.5, 16.8, 22.6, 30.5, 41.0, 55.2, 74.3, 100)
        ),
        at_most=1.25,
    ),
    Case(name="deaths", what="2 of 8 peers killed at one third", num_killed=2, at_most=1.35),
    Case(name="garbage", what="1 of 8 peers sends garbage", num_garbage=1, at_most=1.35),
    Case(
        name="restart",
        what="learner killed at one third, and started again",
        restarts_learner=True,
        is_measured_once=True,
    ),
    Case(
        name="fifteen",
        what="15 peers at 12.5 Mbit/s, 32 MB",
        learner=_SLOW,
        peers=(_SLOW,) * 15,
        size_bytes=32_000_000,
        at_most=1.35,
    ),
    Case(
        name="nat",
        what="4 of 8 peers cannot be dialled",
        peers=(_HOME,) * 4 + (_BEHIND_NAT,) * 4,
        is_measured_once=True,
    ),
)


def quick(case: Case) -> Case:
    """Return a case with so small a payload that it takes seconds.

    What takes the same time for any payload weighs more then; the marks allow for it.
    """
    return replace(
        case,
        size_bytes=case.size_bytes // 4,
        at_most=None if case.at_most is None else case.at_most + 0.5,
        at_most_of_torrent=None if case.at_most_of_torrent is None else 1.0,
    )
