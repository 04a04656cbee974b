"""The ledger's part about evaluations: what was asked, leased and answered, and what came of it.

Nothing of it is ever trained on: updates are made of the tables ``groups`` and ``rollouts``,
and in these there is nothing of an evaluation.
"""

import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from echo2swarm.scheduling.leases.lease_book import (
    MAX_REMEMBERED,
    LeaseRecord,
    LeaseState,
    SampleKey,
)
from learner.ledger.evaluation_rows import FIRST_GROUP, ScoredSample, group_of
from learner.scoring.messages import Prompt
from protocols.ids import LeaseId, PeerId, PolicyVersion
from protocols.sampling import SamplingParams

T = TypeVar("T")
_TABLES: Final = ("evaluation_samples", "evaluation_leases", "evaluations")
"""Those with a version, who refers to others first."""


class Outcome(StrEnum):
    """How an evaluation ended; the value is what the ledger holds."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    """Reported, without the prompts that lacked answers."""
    DROPPED = "dropped"
    """Not one prompt had all its answers."""


class Write(Protocol):
    """Does some work on the ledger as one transaction."""

    def __call__(
        self, work: Callable[[sqlite3.Connection], T], *, is_durable: bool = False
    ) -> Awaitable[T]:
        """Return what the work returns, when it is on disk."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """An evaluation that an earlier process began."""

    version: PolicyVersion
    num_prompts: int
    samples_per_prompt: int
    temperature: float
    max_new_tokens: int
    answers: dict[SampleKey, ScoredSample] = field(default_factory=dict)
    leases: tuple[LeaseRecord, ...] = ()
    num_leases: int = 0

    def is_of(self, *, num_prompts: int, samples_per_prompt: int, sampling: SamplingParams) -> bool:
        """Whether this is what is asked now, too."""
        return (
            self.num_prompts == num_prompts
            and self.samples_per_prompt == samples_per_prompt
            and self.temperature == sampling.temperature
            and self.max_new_tokens == sampling.max_new_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What earlier processes evaluated."""

    newest_version: PolicyVersion | None
    """Of which an evaluation was begun."""
    unfinished: Unfinished | None
    are_other_prompts: bool
    """Whether earlier evaluations asked others than those noted now."""
    newest_figures: dict[str, Any] | None = None
    """What the newest one found that found something."""


class Evaluations:
    """Evaluations on record. Every method returns when what it says is on disk."""

    def __init__(self, write: Write) -> None:
        self._write = write

    async def open(self, prompts: Sequence[Prompt]) -> Before:
        """Note which prompts are asked from now on; returns what there is already."""

        def work(db: sqlite3.Connection) -> Before:
            known = dict(db.execute("SELECT prompt_index, prompt_tokens FROM evaluation_prompts"))
            are_others = any(known.get(p.index, p.tokens) != p.tokens for p in prompts)
            unfinished = _unfinished(db)
            if are_others and unfinished is not None:
                _forget(db, "version = ?", unfinished.version)
                unfinished = None
            db.executemany(
                "INSERT INTO evaluation_prompts VALUES (?, ?) ON CONFLICT DO UPDATE SET "
                "prompt_tokens = excluded.prompt_tokens",
                [(prompt.index, prompt.tokens) for prompt in prompts],
            )
            (newest,) = db.execute("SELECT MAX(version) FROM evaluations").fetchone()
            row = db.execute(
                "SELECT figures FROM evaluations WHERE figures IS NOT NULL "
                "ORDER BY version DESC LIMIT 1"
            ).fetchone()
            return Before(
                newest_version=newest,
                unfinished=unfinished,
                are_other_prompts=are_others,
                newest_figures=None if row is None else json.loads(row[0]),
            )

        return await self._write(work)

    async def started(
        self,
        version: PolicyVersion,
        *,
        num_prompts: int,
        samples_per_prompt: int,
        sampling: SamplingParams,
        now_unix_s: float,
    ) -> None:
        """Record that an evaluation has begun."""
        row = (
            version,
            num_prompts,
            samples_per_prompt,
            sampling.temperature,
            sampling.max_new_tokens,
            now_unix_s,
        )
        await self._write(
            lambda db: db.execute(
                "INSERT INTO evaluations (version, num_prompts, samples_per_prompt, temperature, "
                "max_new_tokens, started_unix_s) VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
        )

    async def abandoned(self, version: PolicyVersion) -> None:
        """Forget an evaluation that will not be gone on with, and all that it had."""
        await self._write(lambda db: _forget(db, "version = ?", version))

    async def granted(
        self, version: PolicyVersion, lease: LeaseRecord, *, now_unix_s: float
    ) -> None:
        """Record a lease."""
        samples = json.dumps([[group - FIRST_GROUP, k] for group, k in sorted(lease.samples)])
        row = (lease.lease_id, version, lease.peer, lease.session_id, now_unix_s, samples)
        await self._write(
            lambda db: db.execute("INSERT INTO evaluation_leases VALUES (?, ?, ?, ?, ?, ?)", row)
        )

    async def judged(
        self,
        version: PolicyVersion,
        lease_id: LeaseId,
        answers: Sequence[tuple[SampleKey, ScoredSample]],
        *,
        now_unix_s: float,
    ) -> None:
        """Record answers."""
        rows = [
            (
                version,
                group - FIRST_GROUP,
                k,
                lease_id,
                answer.peer,
                answer.num_tokens,
                answer.is_truncated,
                answer.reward,
                answer.is_failed,
                answer.text,
                now_unix_s,
            )
            for (group, k), answer in answers
        ]
        await self._write(
            lambda db: db.executemany(
                "INSERT INTO evaluation_samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
        )

    async def ended(
        self,
        version: PolicyVersion,
        outcome: Outcome,
        figures: dict[str, Any] | None,
        *,
        now_unix_s: float,
    ) -> None:
        """Record how an evaluation ended, and what it found."""
        text = None if figures is None else json.dumps(figures)
        await self._write(
            lambda db: db.execute(
                "UPDATE evaluations SET ended_unix_s = ?, outcome = ?, figures = ? "
                "WHERE version = ?",
                (now_unix_s, outcome, text, version),
            )
        )


def forget_after(db: sqlite3.Connection, version: int) -> None:
    """Delete the evaluations of versions that will be made anew."""
    _forget(db, "version > ?", version)


def _forget(db: sqlite3.Connection, where: str, version: int) -> None:
    for table in _TABLES:
        db.execute(f"DELETE FROM {table} WHERE {where}", (version,))  # noqa: S608 - ours


def _unfinished(db: sqlite3.Connection) -> Unfinished | None:
    row = db.execute(
        "SELECT version, num_prompts, samples_per_prompt, temperature, max_new_tokens "
        "FROM evaluations WHERE outcome IS NULL ORDER BY version DESC LIMIT 1"
    ).fetchone()
    if row is None:
        return None
    version = row[0]
    (num_leases,) = db.execute(
        "SELECT COUNT(*) FROM evaluation_leases WHERE version = ?", (version,)
    ).fetchone()
    return Unfinished(
        version=PolicyVersion(version),
        num_prompts=row[1],
        samples_per_prompt=row[2],
        temperature=row[3],
        max_new_tokens=row[4],
        answers=_answers(db, version),
        leases=_leases(db, version),
        num_leases=num_leases,
    )


def _answers(db: sqlite3.Connection, version: int) -> dict[SampleKey, ScoredSample]:
    return {
        (group_of(prompt), k): ScoredSample(
            reward=reward,
            is_failed=bool(is_failed),
            num_tokens=num_tokens,
            is_truncated=bool(is_truncated),
            peer=PeerId(peer),
            text=text,
        )
        for prompt, k, reward, is_failed, num_tokens, is_truncated, peer, text in db.execute(
            "SELECT prompt_index, sample_index, reward, is_failed, num_tokens, is_truncated, peer, "
            "text FROM evaluation_samples WHERE version = ?",
            (version,),
        )
    }


def _leases(db: sqlite3.Connection, version: int) -> tuple[LeaseRecord, ...]:
    return tuple(
        LeaseRecord(
            lease_id=LeaseId(lease_id),
            peer=PeerId(peer),
            session_id=session_id,
            min_version=PolicyVersion(version),
            deadline_step=0,
            granted_at_s=0.0,
            expires_at_s=0.0,
            samples=frozenset((group_of(prompt), k) for prompt, k in json.loads(samples)),
            state=LeaseState.RESTARTED,
        )
        for lease_id, peer, session_id, samples in db.execute(
            "SELECT lease_id, peer, session_id, samples FROM evaluation_leases "
            "WHERE version = ? ORDER BY lease_id DESC LIMIT ?",
            (version, MAX_REMEMBERED),
        )
    )
