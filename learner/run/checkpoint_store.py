"""The checkpoints of a run on disk: made whole, found again, checked, deleted by rule.

A checkpoint is a folder ``step-00000010`` with what the trainer saved and, written last,
``position.json``: whose it is, and size and hash of every other file. It gets its name
when all of it is synced, so a process or a machine that dies leaves it whole or not at
all. What a disk does to it later is found by the sizes and hashes.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from echo2swarm.system.files import sha256_of_file, sync_folder, write_atomically
from learner.run.hold_files import hold_files, remove_abandoned
from protocols.ids import RunId

POSITION: Final = "position.json"
_PARTIAL: Final = ".partial"
_STEP_PREFIX: Final = "step-"
_TRAINER: Final = "trainer"
_ASIDE: Final = "passed-over-"


class FileMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one file must be."""

    size_bytes: int
    sha256: str


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a checkpoint's run was, and what belongs to it."""

    run_id: str
    step: int
    saved_unix_s: float
    files: dict[str, FileMark]
    """By their path in the checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was completed once; whether it still is whole, :func:`damage_of` says."""

    position: Position
    folder: Path

    @property
    def step(self) -> int:
        """Updates done."""
        return self.position.step

    @property
    def trainer(self) -> Path:
        """What the trainer saved."""
        return self.folder / _TRAINER

    @property
    def size_bytes(self) -> int:
        """Of all its files, as they were saved."""
        return sum(mark.size_bytes for mark in self.position.files.values())


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A folder named like a checkpoint of which nobody can tell what it is."""

    folder: Path
    why: str


class CheckpointStore:
    """The folder ``checkpoints`` of one run."""

    def __init__(self, folder: Path, run_id: RunId) -> None:
        self.folder = folder
        self._run_id = run_id

    def all(self) -> list[Checkpoint]:
        """Return the completed checkpoints of this run, oldest first."""
        found = [c for c in self.survey() if isinstance(c, Checkpoint)]
        return sorted(found, key=lambda c: c.step)

    def survey(self) -> list[Checkpoint | Unreadable]:
        """Return whatever has a checkpoint's name, in the order of the names."""
        if not self.folder.is_dir():
            return []
        return [
            self._look(folder)
            for folder in sorted(self.folder.glob(f"{_STEP_PREFIX}*"))
            if not folder.name.endswith(_PARTIAL)
        ]

    def begin(self, step: int) -> Path:
        """Return a new folder for the trainer's state; it counts once completed."""
        partial = self._partial(step)
        _remove(partial)
        partial.mkdir(parents=True)
        return partial / _TRAINER

    def complete(self, step: int) -> Checkpoint:
        """Make the begun checkpoint count: note what is in it, sync it, give it its name.

        Raises:
            OSError: it can't be read or written.
        """
        partial, folder = self._partial(step), self._folder(step)
        position = Position(
            run_id=self._run_id,
            step=step,
            saved_unix_s=time.time(),
            files={str(path.relative_to(partial)): mark_of(path) for path in files_in(partial)},
        )
        write_atomically(partial / POSITION, msgspec.json.format(msgspec.json.encode(position)))
        sync_folder(partial)
        if folder.exists():
            # Of a damaged one; a whole one is not saved again.
            self._discard(folder)
        partial.rename(folder)
        sync_folder(self.folder)
        return Checkpoint(position, folder)

    def abandon(self, step: int) -> None:
        """Remove what was begun and can't be completed."""
        _remove(self._partial(step))

    def prune(self, *, keep: int, keep_every_steps: int) -> None:
        """Delete all but the newest ``keep``, and those that are kept for ever."""
        for old in self.all()[:-keep]:
            if not keep_every_steps or old.step % keep_every_steps:
                self._discard(old.folder)
        remove_abandoned(self.folder)

    @contextmanager
    def hold(self, checkpoint: Checkpoint, *, elsewhere: Path) -> Iterator[Checkpoint]:
        """Yield a checkpoint in a folder of its own, where it stays though the run deletes it.

        Args:
            checkpoint: of this store.
            elsewhere: an existing folder to use if that of the checkpoints can't be written.

        Raises:
            FileNotFoundError: the run has deleted it already.
            OSError: neither folder can be written.
        """
        parents = (self.folder, elsewhere)
        with hold_files(checkpoint.folder, checkpoint.position.files, parents) as folder:
            yield replace(checkpoint, folder=folder)

    def set_aside(self, checkpoint: Checkpoint) -> Path:
        """Rename a checkpoint that a resume had to pass over, so that it counts no more."""
        aside = checkpoint.folder.with_name(f"{_ASIDE}{checkpoint.folder.name}")
        _remove(aside)
        checkpoint.folder.rename(aside)
        return aside

    def clean(self) -> None:
        """Remove what a process that was killed left unfinished."""
        if self.folder.is_dir():
            for folder in self.folder.glob(f"*{_PARTIAL}"):
                _remove(folder)
            remove_abandoned(self.folder)

    def _folder(self, step: int) -> Path:
        return self.folder / f"{_STEP_PREFIX}{step:08d}"

    def _partial(self, step: int) -> Path:
        return self.folder / f"{_STEP_PREFIX}{step:08d}{_PARTIAL}"

    def _discard(self, folder: Path) -> None:
        """Delete a checkpoint so that no half of it ever has a checkpoint's name."""
        doomed = folder.with_name(f"old-{folder.name}{_PARTIAL}")
        _remove(doomed)
        try:
            folder.rename(doomed)
        except FileNotFoundError:
            return  # somebody else has deleted it: so much the better
        _remove(doomed)

    def _look(self, folder: Path) -> Checkpoint | Unreadable:
        try:
            data = (folder / POSITION).read_bytes()
            position = msgspec.json.decode(data, type=Position)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Unreadable(folder, f"{POSITION} is missing or damaged")
        if position.run_id != self._run_id:
            return Unreadable(folder, f"it is of run {position.run_id!r}")
        return Checkpoint(position, folder)


def damage_of(checkpoint: Checkpoint) -> str | None:
    """Return what is wrong with a checkpoint's files, read to their last byte; None if nothing."""
    for name, mark in checkpoint.position.files.items():
        path = checkpoint.folder / name
        try:
            size_bytes = path.stat().st_size
            if size_bytes != mark.size_bytes:
                return f"{name} has {size_bytes} bytes instead of {mark.size_bytes}"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as exc:
            return f"{name} can't be read: {exc.strerror}"
    # Only now: sizes cost nothing, and tell of most faults.
    for name, mark in checkpoint.position.files.items():
        try:
            if sha256_of_file(checkpoint.folder / name) != mark.sha256:
                return f"{name} is not what was saved: its hash differs"
        except OSError as exc:
            return f"{name} can't be read: {exc.strerror}"
    return None


def replay_floor(steps: Sequence[int], *, first_step: int, keep: int) -> int:
    """Return the step from which on recorded updates must stay repeatable.

    That of the oldest of the newest ``keep`` checkpoints, of which the beginning of the run
    is one: so there is always more than one way back if ``keep`` is more than one.
    """
    ways_back = sorted({first_step, *steps})
    return ways_back[-keep] if len(ways_back) >= keep else ways_back[0]


def mark_of(path: Path) -> FileMark:
    """Return size and hash of a file."""
    return FileMark(path.stat().st_size, sha256_of_file(path))


def files_in(folder: Path) -> Iterator[Path]:
    """Yield every file under ``folder``, in the order of their paths."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder, ignore_errors=True)
