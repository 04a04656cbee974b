"""Measure how soon the last peer holds a new version, on emulated links.

    python -m benchmarks.broadcast [--quick] [--case NAME ...] [--runs N] [--json FILE]

Takes root, and about 20 minutes for all cases. ``docs/benchmarks-wan.md`` says
what is measured, and what is not.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

import click
import trio

from benchmarks.broadcast import timeline, torrent
from benchmarks.broadcast.cases import CASES, Case, quick
from benchmarks.broadcast.children import ChildError
from benchmarks.broadcast.results import CaseResult, outcome_of
from benchmarks.broadcast.swarm import run_swarm
from benchmarks.harness import finish
from benchmarks.wan import WanError
from echo2swarm.system.extras import install_extra

STAR_SHARE: Final = 8
"""The star's payload is so much smaller: once it sends, its time grows in proportion."""


_T = TypeVar("_T")


@click.command(help="Measure how soon the last peer holds a new version, on emulated links.")
@click.option("--quick", "is_quick", is_flag=True, help="One run with 16 MB, without the star.")
@click.option(
    "--case",
    "names",
    multiple=True,
    type=click.Choice([case.name for case in CASES]),
    help="Only this one; may be given several times.",
)
@click.option("--runs", type=click.IntRange(1, 20), default=3, help="Runs of each case.")
@click.option("--no-baselines", is_flag=True, help="Without libtorrent and the star.")
@click.option("--urgent", is_flag=True, help="Go before whatever else this machine does.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--timeline",
    "timeline_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the bytes each peer held over time, as PNG.",
)
def main(
    *,
    is_quick: bool,
    names: Sequence[str],
    runs: int,
    no_baselines: bool,
    urgent: bool,
    json_path: Path | None,
    timeline_path: Path | None,
) -> None:
    """Measure, show, and exit with 1 if a mark is missed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's `&` would ignore it
    signal.signal(signal.SIGTERM, _leave)
    chosen = [case for case in CASES if case.name in names] if names else list(CASES)
    if is_quick:
        chosen = [quick(case) for case in (chosen if names else chosen[:1])]
        runs = 1
    has_torrent = torrent.is_installed() and not no_baselines
    has_star = not (no_baselines or is_quick)
    notes = f"Medians of {runs}. " if runs > 1 else ""
    if not has_torrent:
        why = "left out" if no_baselines else f"not installed; {install_extra('bench')}"
        notes += f"libtorrent: {why}. "
    if has_star and any(case.has_baselines for case in chosen):
        notes += f"The star: computed from a payload of 1/{STAR_SHARE} of the size. "
    results: list[CaseResult] = []
    status = 0
    try:
        for case in chosen:
            result = _measure(
                case,
                num_runs=1 if case.is_measured_once else runs,
                has_torrent=has_torrent and case.has_baselines,
                has_star=has_star and case.has_baselines,
                is_urgent=urgent,
            )
            results.append(result)
    except* WanError as group:
        click.echo(f"error: {group.exceptions[0]}", err=True)
        status = 1
    except* KeyboardInterrupt:
        click.echo("interrupted; nothing of the emulated WAN is left", err=True)
        status = 130
    if status:
        sys.exit(status)
    if timeline_path is not None:
        timeline.draw(results, timeline_path)
    sys.exit(finish(outcome_of(results, notes=notes), json_path=json_path))


def _measure(
    case: Case, *, num_runs: int, has_torrent: bool, has_star: bool, is_urgent: bool
) -> CaseResult:
    result = CaseResult(case=case)
    swarm = partial(run_swarm, case, is_urgent=is_urgent)
    client = partial(torrent.run_torrent, case, is_urgent=is_urgent)
    for number in range(num_runs):
        _tell(f"{case.name} {number + 1}/{num_runs}: {case.what}, T* is {case.least_s:.1f} s")
        run = _try(partial(trio.run, swarm), result)
        if run is not None:
            result.runs.append(run)
            _tell(f"  {run.last_s:.1f} s = {run.last_s / case.least_s:.2f} x T*; {run.summary}")
        if has_torrent:
            torrent_s = _try(partial(trio.run, client), result)
            if torrent_s is not None:
                result.torrents_s.append(torrent_s)
                _tell(f"  libtorrent {torrent_s:.1f} s = {torrent_s / case.least_s:.2f} x T*")
    if has_star:
        small = replace(case, size_bytes=case.size_bytes // STAR_SHARE)
        star_run = partial(run_swarm, small, is_star=True, is_urgent=is_urgent)
        star = _try(partial(trio.run, star_run), result)
        if star is not None:
            result.star_s = star.first_s + STAR_SHARE * (star.last_s - star.first_s)
            _tell(f"  star {result.star_s:.0f} s = {result.star_s / case.least_s:.2f} x T*")
    return result


def _try(attempt: Callable[[], _T], result: CaseResult) -> _T | None:
    try:
        return attempt()
    except* ChildError as group:
        failures = [str(exc) for exc in group.exceptions]
    result.failures += failures
    for failure in failures:
        _tell(f"  FAILED: {failure}")
    return None


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _leave(signum: int, frame: FrameType | None) -> None:
    """Take SIGTERM for Ctrl-C, after which is cleaned up."""
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
