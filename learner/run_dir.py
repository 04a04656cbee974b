"""The run directory: everything a run leaves, and what another process goes on from.

Its files::

run.json            the run's id, made once
config.toml         the resolved configuration
identity            the learner's key; whoever has it can sign for the run
ticket.txt          what contributors join with
ledger.sqlite       prompts, leases, rollouts, verdicts, versions
metrics.jsonl       one line per update
events.jsonl        everything that was logged
status.json         the state of the run, written each second
checkpoints/        step-00000010/ and so on, complete by their name
weights/            the versions that nodes fetch
logs/               output of trainer and scorer
"""

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from echo2swarm.errors import StoreError, UsageError
from protocols.ids import RunId

_PARTIAL: Final = ".partial"
_STEP_PREFIX: Final = "step-"


class _RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run_id: str


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a checkpoint's run was; lies beside the trainer's state."""

    run_id: str
    step: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    folder: Path

    @property
    def trainer(self) -> Path:
        """What the trainer saved."""
        return self.folder / "trainer"


class RunDir:
    """Where the files of one run are."""

    TICKET: Final = "ticket.txt"
    CONFIG: Final = "config.toml"
    RUN: Final = "run.json"
    LEDGER: Final = "ledger.sqlite"

    def __init__(self, folder: Path, run_id: RunId) -> None:
        self.folder = folder
        self.run_id = run_id
        self.identity = folder / "identity"
        self.ticket = folder / self.TICKET
        self.config = folder / self.CONFIG
        self.ledger = folder / self.LEDGER
        self.metrics = folder / "metrics.jsonl"
        self.events = folder / "events.jsonl"
        self.status = folder / "status.json"
        self.weights = folder / "weights"
        self.logs = folder / "logs"
        self.snapshots = folder / "snapshots"
        self.checkpoints = folder / "checkpoints"

    def newest_checkpoint(self) -> Checkpoint | None:
        """Return the newest complete checkpoint of this run."""
        return max(self._all_checkpoints(), key=lambda c: c.step, default=None)

    def oldest_checkpoint(self) -> Checkpoint | None:
        """Return the oldest complete checkpoint kept."""
        return min(self._all_checkpoints(), key=lambda c: c.step, default=None)

    def begin_checkpoint(self, step: int) -> Path:
        """Return a new folder for the trainer's state; it counts once completed."""
        partial = self.checkpoints / f"{_STEP_PREFIX}{step:08d}{_PARTIAL}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        return partial / "trainer"

    def complete_checkpoint(self, step: int, *, keep: int) -> Checkpoint:
        """Make the begun checkpoint count, and delete all but the newest ``keep``."""
        name = f"{_STEP_PREFIX}{step:08d}"
        partial, folder = self.checkpoints / (name + _PARTIAL), self.checkpoints / name
        position = Position(run_id=self.run_id, step=step)
        write_atomically(partial / "position.json", msgspec.json.encode(position))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        sync_folder(self.checkpoints)
        for old in sorted(self._all_checkpoints(), key=lambda c: c.step)[:-keep]:
            shutil.rmtree(old.folder, ignore_errors=True)
        return Checkpoint(step, folder)

    def clean(self) -> None:
        """Remove what a process that was killed left unfinished."""
        shutil.rmtree(self.snapshots, ignore_errors=True)
        if self.checkpoints.is_dir():
            for folder in self.checkpoints.iterdir():
                if folder.name.endswith(_PARTIAL):
                    shutil.rmtree(folder, ignore_errors=True)

    def forget_versions_after(self, step: int) -> None:
        """Delete the published versions beyond ``step``: they will be made anew."""
        for path in (self.weights / "versions").glob("*.manifest"):
            if path.stem.isdigit() and int(path.stem) > step:
                path.unlink()

    def _all_checkpoints(self) -> list[Checkpoint]:
        found = []
        folders = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        for folder in folders:
            if folder.name.endswith(_PARTIAL):
                continue
            try:
                data = (folder / "position.json").read_bytes()
                position = msgspec.json.decode(data, type=Position)
            except (OSError, msgspec.MsgspecError):
                continue
            if position.run_id == self.run_id:
                found.append(Checkpoint(position.step, folder))
        return found


def open_run_dir(folder: Path, *, name: str, resume: bool) -> RunDir:
    """Make the directory of a new run, or find that of an old one.

    Raises:
        UsageError: it exists and is not to be resumed, or is to be and does not.
        StoreError: it is no run directory, or can't be written.
    """
    run_file = folder / RunDir.RUN
    if resume:
        if not run_file.is_file():
            raise no_run_in(folder)
        try:
            run_id = msgspec.json.decode(run_file.read_bytes(), type=_RunFile).run_id
        except msgspec.MsgspecError as exc:
            raise StoreError(f"{run_file} is damaged: {exc}") from exc
        run_dir = RunDir(folder, RunId(run_id))
    else:
        if not _is_free(folder):
            raise UsageError(
                f"{folder} exists already; go on with that run by --resume, or choose another "
                "directory by --run-dir or --name"
            )
        run_dir = RunDir(folder, RunId(f"{name}-{secrets.token_hex(3)}"))
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(run_file, msgspec.json.encode(_RunFile(run_dir.run_id)))
    run_dir.logs.mkdir(exist_ok=True)
    run_dir.checkpoints.mkdir(exist_ok=True)
    return run_dir


def no_run_in(folder: Path) -> UsageError:
    """Return the error that says that ``folder`` holds nothing to resume."""
    return UsageError(f"{folder}: there is no run to resume; leave out --resume to begin one")


def _is_free(folder: Path) -> bool:
    """Whether a run may begin in ``folder``.

    It may where one failed before it had a ledger, as for a port in use: what that left
    is no run, and whoever mends the cause and starts again should not trip over it.
    """
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or (RunDir.RUN in names and RunDir.LEDGER not in names)


def write_atomically(path: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Write a file so that readers see all of it or the one before."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as exc:
        temporary.unlink(missing_ok=True)
        # A write that fails, unlike an open, does not say of which file.
        exc.filename = exc.filename or str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
