"""Weights of other runs, left in the state directory: deleted by rule, never the current run's.

They are only a cache: whoever joins one of those runs again fetches them again. They go when
they were not used for a month, or at once if the owner has set a quota.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import structlog
import trio

DISK_LOOK_S: Final = 15.0
MAX_IDLE_S: Final = 30 * 86_400.0
_USED: Final = "used"
"""A file whose time tells when a run was last taken part in."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRun:
    """What one run left behind."""

    run_id: str
    num_bytes: int
    used_unix_s: float


def runs_to_clear(
    runs: Iterable[OldRun], *, current: str, now_unix_s: float, has_quota: bool
) -> list[str]:
    """Return the runs whose weights are to be deleted."""
    return [
        run.run_id
        for run in runs
        if run.run_id != current
        and run.num_bytes
        and (has_quota or now_unix_s - run.used_unix_s > MAX_IDLE_S)
    ]


def clear_old_runs(folder: Path, *, current: str, now_unix_s: float, has_quota: bool) -> None:
    """Delete the weights of runs that are not taken part in any more.

    Args:
        folder: holds one folder for each run.
        current: the run that begins now; noted as used.
        now_unix_s: the present.
        has_quota: whether the owner has limited the disk.
    """
    mark = folder / current / _USED
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    runs = [_look_at(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    for run_id in runs_to_clear(runs, current=current, now_unix_s=now_unix_s, has_quota=has_quota):
        num_bytes = next(run.num_bytes for run in runs if run.run_id == run_id)
        weights = folder / run_id / "weights"
        with _locked(weights) as is_ours:
            if is_ours:
                shutil.rmtree(weights, ignore_errors=True)
                log.info("old_run.cleared", run=run_id, num_bytes=num_bytes)


class DiskMeter:
    """Knows how much space a folder takes, as of a little while ago."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_bytes: int | None = None

    @property
    def num_bytes(self) -> int | None:
        """What it takes; None before the first look."""
        return self._num_bytes

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            self._num_bytes = await trio.to_thread.run_sync(
                bytes_in, self._folder, abandon_on_cancel=True
            )
            await trio.sleep(DISK_LOOK_S)


def bytes_in(folder: Path) -> int:
    """Return how much disk space a folder takes."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).lstat().st_blocks * 512
            except OSError:
                continue  # deleted meanwhile
    return total


def _look_at(path: Path) -> OldRun:
    used = path / _USED
    at = used if used.exists() else path
    return OldRun(
        run_id=path.name, num_bytes=bytes_in(path / "weights"), used_unix_s=at.stat().st_mtime
    )


@contextmanager
def _locked(weights: Path) -> Iterator[bool]:
    """Yield whether no other process has the store open; it can't open it meanwhile."""
    try:
        file = (weights / "lock").open("ab")
    except OSError:
        yield True
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
