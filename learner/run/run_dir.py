"""The run directory: everything a run leaves, and what another process goes on from.

Its files::

run.json            the run's id, made once, and which checkpoint it was forked from
config.toml         the resolved configuration
inputs.json         what data, verifier and model were when it began
identity            the learner's key; whoever has it can sign for the run
ticket.txt          what contributors join with
ledger.sqlite       prompts, leases, rollouts, verdicts, versions
metrics.jsonl       one line per update, and per evaluation
events.jsonl        what was logged; what became too long before is in events.jsonl.1
tensorboard/        event files, if tracking.tensorboard is set
status.json         the state of the run, written each second
checkpoints/        step-00000010/ and so on, complete by their name
weights/            the versions that nodes fetch
logs/               output of trainer and scorer
lock                held by the learner at work
"""

import fcntl
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from echo2swarm.system.errors import StoreError, UsageError
from echo2swarm.system.files import write_atomically
from echo2swarm.text.ticket import TICKET_FILE
from learner.run.checkpoint_store import Checkpoint, CheckpointStore
from protocols.ids import RunId


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The checkpoint of another run that a run began with."""

    run_id: str
    folder: str
    step: int
    forked_unix_s: float
    has_fresh_optimizer: bool = False


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``run.json``."""

    run_id: str
    forked_from: Origin | None = None


class RunDir:
    """Where the files of one run are."""

    TICKET: Final = TICKET_FILE
    CONFIG: Final = "config.toml"
    RUN: Final = "run.json"
    LEDGER: Final = "ledger.sqlite"
    CHECKPOINTS: Final = "checkpoints"
    LOCK: Final = "lock"

    def __init__(self, folder: Path, run_id: RunId, *, forked_from: Origin | None = None) -> None:
        self.folder = folder
        self.run_id = run_id
        self.forked_from = forked_from
        self.identity = folder / "identity"
        self.ticket = folder / self.TICKET
        self.config = folder / self.CONFIG
        self.inputs = folder / "inputs.json"
        self.ledger = folder / self.LEDGER
        self.metrics = folder / "metrics.jsonl"
        self.tensorboard = folder / "tensorboard"
        self.events = folder / "events.jsonl"
        self.status = folder / "status.json"
        self.weights = folder / "weights"
        self.logs = folder / "logs"
        self.snapshots = folder / "snapshots"
        self.checkpoints = CheckpointStore(folder / self.CHECKPOINTS, run_id)

    @property
    def first_step(self) -> int:
        """The step of the weights that the run began with."""
        return self.forked_from.step if self.forked_from else 0

    def begins_with_fresh_optimizer(self, checkpoint: Checkpoint | None) -> bool:
        """Whether only the weights of this checkpoint, which is to be gone on from, are taken."""
        origin = self.forked_from
        return bool(
            origin
            and origin.has_fresh_optimizer
            and checkpoint is not None
            and checkpoint.step == origin.step
        )

    @property
    def warmup_from(self) -> int:
        """The step at which the run's optimizer was new."""
        origin = self.forked_from
        return origin.step if origin and origin.has_fresh_optimizer else 0

    def newest_checkpoint(self) -> Checkpoint | None:
        """Return the newest completed checkpoint of this run."""
        return max(self.checkpoints.all(), key=lambda c: c.step, default=None)

    def clean(self) -> None:
        """Remove what a process that was killed left unfinished."""
        shutil.rmtree(self.snapshots, ignore_errors=True)
        self.checkpoints.clean()

    def forget_start(self) -> None:
        """Remove what a run wrote that failed before anybody had its ticket.

        Its logs stay, and say why; a run may begin here again, see :func:`is_free`.
        """
        for path in self.folder.glob(f"{self.LEDGER}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.weights, ignore_errors=True)

    def forget_versions_after(self, step: int) -> None:
        """Delete the published versions beyond ``step``: they will be made anew."""
        for path in (self.weights / "versions").glob("*.manifest"):
            if path.stem.isdigit() and int(path.stem) > step:
                path.unlink()


def open_run_dir(folder: Path, *, name: str, resume: bool) -> RunDir:
    """Make the directory of a new run, or find that of an old one; :func:`hold` it first.

    Raises:
        UsageError: it exists and is not to be resumed, or is to be and does not.
        StoreError: it is no run directory, or can't be written.
    """
    if not resume:
        return make_run_dir(folder, name=name)
    check_is_there(folder)
    run_dir = read_run_dir(folder)
    if not run_dir.ledger.is_file():
        if run_dir.newest_checkpoint() is None:
            raise UsageError(
                f"{folder}: the run has done nothing yet that could be resumed; leave out --resume"
            )
        raise StoreError(
            f"{run_dir.ledger} is missing, and without it nobody knows what the run has done; "
            "restore it, or begin a new run: "
            f"echo2-learner fork {shlex.quote(str(folder))} --run-dir NEW"
        )
    _make_folders(run_dir)
    return run_dir


def make_run_dir(folder: Path, *, name: str, forked_from: Origin | None = None) -> RunDir:
    """Make the directory of a new run.

    Raises:
        UsageError: there is something already.
    """
    if not is_free(folder):
        raise UsageError(
            f"{folder} exists already; go on with that run by --resume, or choose another "
            "directory by --run-dir or --name"
        )
    run_id = RunId(f"{name}-{secrets.token_hex(3)}")
    run_dir = RunDir(folder, run_id, forked_from=forked_from)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / RunDir.RUN, msgspec.json.encode(RunFile(run_id, forked_from)))
    _make_folders(run_dir)
    return run_dir


def read_run_dir(folder: Path) -> RunDir:
    """Return what is in ``folder``; nothing is written.

    Raises:
        UsageError: there is no run.
        StoreError: its file is damaged.
    """
    run_file = folder / RunDir.RUN
    try:
        run = msgspec.json.decode(run_file.read_bytes(), type=RunFile)
    except FileNotFoundError:
        what = "not a run directory" if folder.exists() else "no such run directory"
        raise UsageError(f"{folder}: {what}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreError(f"{run_file} is damaged: {exc}") from exc
    return RunDir(folder, RunId(run.run_id), forked_from=run.forked_from)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Have the run directory for this process alone; nothing in it was touched before.

    The system lets go of it if this process dies. The folder is made if it is missing, and
    removed again if nothing came of it.

    Raises:
        UsageError: another learner works there.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(
            folder / RunDir.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
        )
    except OSError as exc:
        raise StoreError(f"can't use run directory {folder}: {exc.strerror or exc}") from exc
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "another"
            raise UsageError(
                f"{folder}: a learner is at work there already (process {holder}); "
                "stop it, or choose another directory by --run-dir or --name"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
        if is_new and not (folder / RunDir.RUN).exists():
            (folder / RunDir.LOCK).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()


def _make_folders(run_dir: RunDir) -> None:
    run_dir.logs.mkdir(exist_ok=True)
    run_dir.checkpoints.folder.mkdir(exist_ok=True)


def check_is_there(folder: Path) -> None:
    """Do nothing if there is a run to resume in ``folder``.

    Raises:
        UsageError: there is none.
    """
    if not (folder / RunDir.RUN).exists():
        raise UsageError(f"{folder}: there is no run to resume; leave out --resume to begin one")


def is_free(folder: Path) -> bool:
    """Whether a run may begin in ``folder``.

    It may where one failed before it had told its ticket, as for a port in use: what that
    left (no ledger, :meth:`RunDir.forget_start`) is no run, and whoever mends the cause and
    starts again should not trip over it.
    """
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()} - {RunDir.LOCK}
    if any((folder / RunDir.CHECKPOINTS).glob("step-*")):
        return False
    return not names or (RunDir.RUN in names and RunDir.LEDGER not in names)
