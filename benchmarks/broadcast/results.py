"""From the runs of all cases to one table, its marks and its figures; pure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, nan
from statistics import median
from typing import Any

from benchmarks.broadcast.cases import Case
from benchmarks.broadcast.swarm import Run
from benchmarks.harness import Mark, Outcome
from benchmarks.wan.links import GOODPUT_SHARE

WHAT = (
    "Seconds from the publication until the last peer holds the version, whole and verified, "
    "in multiples of T* = max(F/u_s, F/d_min, N*F/(u_s + sum u_i)). Rates are those of the links "
    f"times {GOODPUT_SHARE:.4f}: 1448 of 1514 bytes of a full frame are payload of TCP. "
)


@dataclass(kw_only=True)
class CaseResult:
    """All that was measured of one case."""

    case: Case
    runs: list[Run] = field(default_factory=list)
    torrents_s: list[float] = field(default_factory=list)
    star_s: float | None = None
    failures: list[str] = field(default_factory=list)
    """Runs that came to nothing, and why."""

    @property
    def last_s(self) -> float:
        """The last peer's time: the median, infinite if any run failed."""
        return median(run.last_s for run in self.runs) if self.runs and not self.failures else inf

    @property
    def copies(self) -> float:
        """Copies of the payload that the learner sent, the median."""
        return median(run.copies for run in self.runs) if self.runs else nan

    @property
    def torrent_s(self) -> float | None:
        """The last peer's time with libtorrent, the median."""
        return median(self.torrents_s) if self.torrents_s else None


def outcome_of(results: Sequence[CaseResult], *, notes: str = "") -> Outcome:
    """Return the table of all cases, and what they are held to."""
    return Outcome(
        name="broadcast",
        what=WHAT + notes,
        columns=("case", "N", "MB", "T* s", "last s", "x T*", "copies", "libtorrent x T*", "star"),
        rows=tuple(_row(result) for result in results),
        marks=tuple(mark for result in results for mark in _marks(result)),
        figures={result.case.name: _figures(result) for result in results},
    )


def _row(result: CaseResult) -> tuple[str | float, ...]:
    case, least_s = result.case, result.case.least_s
    return (
        case.what,
        str(len(case.peers)),
        f"{case.size_bytes / 1e6:g}",
        f"{least_s:.1f}",
        f"{result.last_s:.1f}",
        f"{result.last_s / least_s:.2f}",
        f"{result.copies:.2f}",
        "-" if result.torrent_s is None else f"{result.torrent_s / least_s:.2f}",
        "-" if result.star_s is None else f"{result.star_s / least_s:.2f}",
    )


def _marks(result: CaseResult) -> Iterator[Mark]:
    case = result.case
    yield Mark(name=f"{case.name}: runs that failed", value=len(result.failures), at_most=0)
    if case.at_most is not None:
        ratio = result.last_s / case.least_s
        yield Mark(name=f"{case.name}: last peer / T*", value=ratio, at_most=case.at_most)
    if case.at_most_of_torrent is not None and result.torrent_s is not None:
        ratio = result.last_s / result.torrent_s
        name = f"{case.name}: last peer / libtorrent's"
        yield Mark(name=name, value=ratio, at_most=case.at_most_of_torrent)
    if case.max_copies is not None:
        name = f"{case.name}: copies the learner sent"
        yield Mark(name=name, value=result.copies, at_most=case.max_copies)


def _figures(result: CaseResult) -> dict[str, Any]:
    return {
        "what": result.case.what,
        "least_s": result.case.least_s,
        "size_bytes": result.case.size_bytes,
        "links": [asdict(link) for link in result.case.links],
        "last_s": result.last_s if result.last_s < inf else None,
        "runs": [asdict(run) for run in result.runs],
        "failures": result.failures,
        "torrents_s": result.torrents_s,
        "star_s": result.star_s,
    }
