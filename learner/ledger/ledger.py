"""The ledger: what was leased, accepted, refused and trained, on disk before it counts.

An SQLite database in WAL mode: a process killed at any instant leaves it whole, with all
that a method returned from. So does a loss of power, but for the last moments' leases and
verdicts; updates, and all that they were made of, are synced before they are published
(``docs/adr/0013-what-the-ledger-syncs.md``). There is one writer at a time, in a worker
thread; a full disk makes callers wait, with a message. The run's figures (staleness above
all) are read from here, not from counters.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from echo2swarm.scheduling.leases.batcher import TrainingBatch
from echo2swarm.scheduling.leases.groups import AcceptedRollout
from echo2swarm.scheduling.leases.lease_book import LeaseEnded, LeaseRecord, SampleKey
from echo2swarm.scheduling.leases.open_group import Dropped
from echo2swarm.system.errors import StoreError
from learner.ledger import resume as ledger_resume
from learner.ledger.evaluations import Evaluations
from learner.ledger.meta import FORGOTTEN_BEFORE, Beginning, get_meta, set_meta
from learner.ledger.refusal import Refusal
from learner.ledger.resume import LeftOver, Reach
from learner.ledger.schema import MIGRATIONS, SCHEMA, SCHEMA_VERSION
from protocols.advert import NodeAdvert
from protocols.ids import LeaseId, PeerId
from protocols.leases import Lease

RETRY_S: Final = 5.0
_BUSY_TIMEOUT_S: Final = 30.0
_PAUSING_ERRORS: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})

T = TypeVar("T")
log = structlog.get_logger()


@asynccontextmanager
async def open_ledger(
    path: Path, *, run_id: str, max_staleness: int, beginning: Beginning | None = None
) -> AsyncIterator["Ledger"]:
    """Open the ledger at ``path``, made if missing.

    Args:
        path: the file.
        run_id: whose it is.
        max_staleness: the bound that it enforces from now on.
        beginning: where the run began, if it is a fork; noted in a new ledger.

    Raises:
        StoreError: it can't be opened, is of another run, or of another software version.
    """
    connection = await trio.to_thread.run_sync(
        partial(
            _connect,
            path,
            run_id=run_id,
            max_staleness=max_staleness,
            beginning=beginning or Beginning(),
        )
    )
    try:
        yield Ledger(connection, path)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(connection.close)


class Ledger:
    """The open ledger. Every method returns when what it says is on disk."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._one_writer = trio.CapacityLimiter(1)
        self._failure: StoreError | None = None
        self._failed = trio.Event()
        self.evaluations = Evaluations(self._write)

    async def watch(self) -> None:
        """Wait until the ledger fails for good, wherever that was noticed.

        Raises:
            StoreError: the failure; what is not on record must not go on.
        """
        await self._failed.wait()
        assert self._failure is not None  # noqa: S101 - set before the event
        raise self._failure

    async def granted(self, lease: Lease, record: LeaseRecord, *, now_unix_s: float) -> None:
        """Record a lease and, the first time, its prompts."""
        groups = [(g.group_id, g.prompt_tokens, now_unix_s) for g in lease.groups]
        samples = [
            (lease.lease_id, g.group_id, s.index, s.seed) for g in lease.groups for s in g.samples
        ]

        def write(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT INTO groups (group_id, prompt_tokens, opened_unix_s) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                groups,
            )
            db.execute(
                "INSERT INTO leases (lease_id, peer, session_id, min_version, deadline_step, "
                "granted_unix_s) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    record.lease_id,
                    record.peer,
                    record.session_id,
                    record.min_version,
                    record.deadline_step,
                    now_unix_s,
                ),
            )
            db.executemany("INSERT INTO leased_samples VALUES (?, ?, ?, ?)", samples)

        await self._write(write)

    async def judged(
        self,
        *,
        lease_id: LeaseId,
        peer: PeerId,
        accepted: Iterable[tuple[SampleKey, AcceptedRollout]],
        refused: Sequence[Refusal],
        now_unix_s: float,
    ) -> None:
        """Record what became of submitted rollouts."""
        rows = [
            (
                group_id,
                index,
                lease_id,
                peer,
                rollout.version,
                rollout.num_tokens,
                rollout.is_truncated,
                rollout.reward,
                rollout.text,
                rollout.tokens,
                rollout.logprobs,
                now_unix_s,
            )
            for (group_id, index), rollout in accepted
        ]

        def write(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT INTO rollouts (group_id, sample_index, lease_id, peer, version, "
                "num_tokens, is_truncated, reward, text, tokens, logprobs, accepted_unix_s) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            _count_refusals(db, peer, refused, now_unix_s)

        await self._write(write)

    async def refused(
        self, peer: PeerId, refusals: Sequence[Refusal], *, now_unix_s: float
    ) -> None:
        """Record refusals that belong to no lease of the peer's."""
        await self._write(lambda db: _count_refusals(db, peer, refusals, now_unix_s))

    async def ended(self, ends: Sequence[LeaseEnded], *, now_unix_s: float) -> None:
        """Record how leases ended."""
        await self._write(
            lambda db: db.executemany(
                "UPDATE leases SET ended_unix_s = ?, outcome = ?, num_unfinished = ? "
                "WHERE lease_id = ?",
                [(now_unix_s, end.state, end.num_unfinished, end.lease_id) for end in ends],
            )
        )

    async def revived(self, lease_ids: Sequence[LeaseId]) -> None:
        """Record that leases go on after all."""
        await self._write(
            lambda db: db.executemany(
                "UPDATE leases SET ended_unix_s = NULL, outcome = NULL, num_unfinished = NULL "
                "WHERE lease_id = ?",
                [(lease_id,) for lease_id in lease_ids],
            )
        )

    async def dropped(self, drops: Sequence[Dropped], *, now_unix_s: float) -> None:
        """Record the prompts that will never be trained on, and why."""

        def write(db: sqlite3.Connection) -> None:
            db.executemany(
                "UPDATE groups SET drop_reason = ?, closed_unix_s = ? WHERE group_id = ?",
                [(drop.reason, now_unix_s, drop.group_id) for drop in drops],
            )
            db.executemany(
                "UPDATE rollouts SET tokens = NULL, logprobs = NULL WHERE group_id = ?",
                [(drop.group_id,) for drop in drops],
            )

        await self._write(write)

    async def trained(self, batch: TrainingBatch, *, now_unix_s: float) -> None:
        """Record that the update from version ``batch.step`` used these groups."""
        group_ids = [(batch.step, group.group_id) for group in batch.groups]

        def write(db: sqlite3.Connection) -> None:
            db.executemany("UPDATE rollouts SET trained_step = ? WHERE group_id = ?", group_ids)
            db.executemany(
                "UPDATE groups SET trained_step = ?, closed_unix_s = ? WHERE group_id = ?",
                [(step, now_unix_s, group_id) for step, group_id in group_ids],
            )

        # Once its weights are out, this must be known for ever: a version is made again from it.
        await self._write(write, is_durable=True)

    async def published(
        self, version: int, *, weights_sha256: bytes, size_bytes: int, now_unix_s: float
    ) -> None:
        """Record a published version."""
        await self._write(
            lambda db: db.execute(
                "INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?)",
                (version, weights_sha256, size_bytes, now_unix_s),
            )
        )

    async def joined(self, peer: PeerId, advert: NodeAdvert, *, now_unix_s: float) -> None:
        """Record a node's (re)appearance."""
        await self._write(
            lambda db: db.execute(
                "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, 1, ?, ?) ON CONFLICT DO UPDATE SET "
                "name = excluded.name, engine = excluded.engine, device = excluded.device, "
                "usd_per_hour = excluded.usd_per_hour, num_sessions = num_sessions + 1, "
                "last_unix_s = excluded.last_unix_s",
                (
                    peer,
                    advert.name,
                    advert.engine,
                    advert.device,
                    advert.usd_per_hour,
                    now_unix_s,
                    now_unix_s,
                ),
            )
        )

    async def reach(self) -> Reach:
        """Return from which checkpoints a run with this ledger can go on."""
        return await self._write(ledger_resume.reach)

    async def resume(
        self, step: int, *, max_staleness: int, now_unix_s: float, are_same_prompts: bool = True
    ) -> LeftOver:
        """Go back to the checkpoint of ``step``; returns the work that is still of use."""
        return await self._write(
            partial(
                ledger_resume.resume_ledger,
                step=step,
                max_staleness=max_staleness,
                now_unix_s=now_unix_s,
                are_same_prompts=are_same_prompts,
            ),
            is_durable=True,
        )

    async def forget_tokens(self, *, before_step: int) -> None:
        """Delete the tokens of rollouts trained on before ``before_step``: no resume needs them."""

        def write(db: sqlite3.Connection) -> None:
            forgotten = db.execute(
                "UPDATE rollouts SET tokens = NULL, logprobs = NULL "
                "WHERE trained_step < ? AND tokens IS NOT NULL",
                (before_step,),
            )
            if forgotten.rowcount:
                set_meta(db, FORGOTTEN_BEFORE, str(before_step))

        await self._write(write)

    async def staleness_histogram(self) -> dict[int, int]:
        """Return how many trained rollouts had which staleness."""
        rows = await self._write(
            lambda db: db.execute("SELECT lag, num_rollouts FROM staleness ORDER BY lag").fetchall()
        )
        return dict(rows)

    async def _write(
        self, work: Callable[[sqlite3.Connection], T], *, is_durable: bool = False
    ) -> T:
        """Do ``work`` as one transaction, waiting for disk space if need be.

        With ``is_durable`` it is synced, and with it all that was written before.
        """

        def transaction() -> T:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            with self._connection:
                return work(self._connection)

        is_pausing = False
        while True:
            try:
                result = await trio.to_thread.run_sync(transaction, limiter=self._one_writer)
            except sqlite3.Error as exc:
                if getattr(exc, "sqlite_errorcode", None) not in _PAUSING_ERRORS:
                    self._failure = StoreError(f"can't write the ledger {self._path}: {exc}")
                    self._failed.set()
                    raise self._failure from exc
                if not is_pausing:
                    log.error(
                        "ledger.paused",
                        error=f"no space left for {self._path}",
                        do="free some space there; the run waits and then goes on by itself",
                    )
                is_pausing = True
                await trio.sleep(RETRY_S)
            else:
                if is_pausing:
                    log.info("ledger.resumed", file=str(self._path))
                return result


def _count_refusals(
    db: sqlite3.Connection, peer: PeerId, refusals: Sequence[Refusal], now_unix_s: float
) -> None:
    """Add to the counts per reason: many refusals take no more space than one."""
    db.executemany(
        "INSERT INTO refusals VALUES (?, ?, 1, ?, ?) ON CONFLICT DO UPDATE SET "
        "num_refused = num_refused + 1, last_detail = excluded.last_detail, "
        "last_unix_s = excluded.last_unix_s",
        [(peer, refusal.reason, refusal.detail, now_unix_s) for refusal in refusals],
    )


def _connect(
    path: Path, *, run_id: str, max_staleness: int, beginning: Beginning
) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, check_same_thread=False, timeout=_BUSY_TIMEOUT_S)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            _prepare(connection, path, beginning)
            _claim(connection, path, run_id=run_id, max_staleness=max_staleness)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as exc:
        raise StoreError(f"can't open the ledger {path}: {exc}") from exc
    return connection


def _prepare(db: sqlite3.Connection, path: Path, beginning: Beginning) -> None:
    """Make the tables, or bring those of older software up to date."""
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found == 0:
        noted = "".join(
            f"INSERT INTO meta VALUES ('{key}', '{value}');"  # noqa: S608 - numbers of ours
            for key, value in beginning.as_meta()
        )
        db.executescript(f"BEGIN; {SCHEMA} {noted} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        return
    while (steps := MIGRATIONS.get(found)) is not None:
        found += 1
        db.executescript(f"BEGIN; {steps} PRAGMA user_version = {found}; COMMIT;")
    if found != SCHEMA_VERSION:
        raise StoreError(
            f"ledger {path} has format {found}, this software reads {SCHEMA_VERSION}; "
            "use the version that wrote it, or another run directory"
        )


def _claim(db: sqlite3.Connection, path: Path, *, run_id: str, max_staleness: int) -> None:
    with db:
        db.execute("INSERT INTO meta VALUES ('run_id', ?) ON CONFLICT DO NOTHING", (run_id,))
        set_meta(db, "max_staleness", str(max_staleness))
    owner = get_meta(db, "run_id")
    if owner != run_id:
        raise StoreError(f"ledger {path} is of run {owner!r}, this is {run_id!r}")
