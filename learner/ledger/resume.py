"""Going on after a crash: what the ledger holds that the last checkpoint does not.

An update is recorded before its weights are published. So every version that a node may
hold can be made again: from the checkpoint, by the recorded updates, in their order. Then
nothing is lost, nothing is trained twice, and no version number stands for two policies.
"""

import sqlite3
from dataclasses import dataclass, field
from typing import Final

from echo2swarm.dispatch.batcher import Batch, in_order
from echo2swarm.dispatch.groups import AcceptedRollout, CompleteGroup, DropReason
from echo2swarm.dispatch.leasing import MAX_REMEMBERED, LeaseRecord, LeaseState
from echo2swarm.dispatch.prompt_queue import MAX_PASSED, WINDOW
from echo2swarm.freshness import Freshness, judge
from protocols.ids import GroupId, LeaseId, PeerId, PolicyVersion
from protocols.reasons import Reason

MAX_SKIPPED_BEHIND: Final = WINDOW * (MAX_PASSED + 1)
"""No prompt waits for longer than it takes to lease so many others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedGroup:
    """A group that was leased and is neither trained nor dropped."""

    group_id: GroupId
    prompt_tokens: bytes
    rollouts: dict[int, AcceptedRollout]
    """By their place in the group; the others lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a node has done for the run so far."""

    num_accepted: int = 0
    num_trained: int = 0
    refusals: dict[Reason, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """What an earlier process left."""

    updates: tuple[Batch, ...] = ()
    """Those after the checkpoint, to be made again before anything else."""
    weights_sha256: bytes | None = None
    """Of the version after the last of them, if that was published."""
    published: tuple[PolicyVersion, ...] = ()
    """The versions that were published up to there."""
    groups: tuple[OpenedGroup, ...] = ()
    next_group: int = 0
    """The first prompt after all that were ever leased."""
    skipped: tuple[int, ...] = ()
    """Prompts before it that were not: others suited the nodes better."""
    leases: tuple[LeaseRecord, ...] = ()
    """Those that nodes had in hand; their results are still welcome."""
    num_leases: int = 0
    """Granted so far."""
    contributions: dict[PeerId, Contribution] = field(default_factory=dict)
    num_rollouts_undone: int = 0
    """Rollouts that neither the updates nor later ones can use."""


def resume(db: sqlite3.Connection, *, step: int, max_staleness: int, now_unix_s: float) -> LeftOver:
    """Bring the ledger to where a run stands that goes on from the checkpoint of ``step``."""
    updates = _recorded_updates(db, step)
    step += len(updates)
    _undo_updates(db, step)
    leases = _leases_in_hand(db)
    db.execute(
        "UPDATE leases SET outcome = ?, ended_unix_s = ? WHERE outcome IS NULL",
        (LeaseState.RESTARTED, now_unix_s),
    )
    kept: list[OpenedGroup] = []
    num_undone = 0
    for group_id, prompt_tokens in db.execute(
        "SELECT group_id, prompt_tokens FROM groups "
        "WHERE trained_step IS NULL AND drop_reason IS NULL ORDER BY group_id"
    ).fetchall():
        rollouts = _rollouts_of(db, group_id)
        reason = _unusable(rollouts, step=step, max_staleness=max_staleness)
        if reason is None:
            kept.append(
                OpenedGroup(
                    group_id=GroupId(group_id), prompt_tokens=prompt_tokens, rollouts=rollouts
                )
            )
        else:
            num_undone += len(rollouts)
            db.execute(
                "UPDATE groups SET drop_reason = ?, closed_unix_s = ? WHERE group_id = ?",
                (reason, now_unix_s, group_id),
            )
    (newest,) = db.execute("SELECT MAX(group_id) FROM groups").fetchone()
    first = max(0, (newest or 0) - MAX_SKIPPED_BEHIND)
    leased = {
        group_id
        for (group_id,) in db.execute("SELECT group_id FROM groups WHERE group_id >= ?", (first,))
    }
    (num_leases,) = db.execute("SELECT COUNT(*) FROM leases").fetchone()
    published = dict(db.execute("SELECT version, weights_sha256 FROM versions ORDER BY 1"))
    return LeftOver(
        updates=updates,
        weights_sha256=published.get(step),
        published=tuple(map(PolicyVersion, published)),
        groups=tuple(kept),
        leases=leases,
        contributions=_contributions(db),
        next_group=0 if newest is None else newest + 1,
        skipped=tuple(index for index in range(first, newest or 0) if index not in leased),
        num_leases=num_leases,
        num_rollouts_undone=num_undone,
    )


def _recorded_updates(db: sqlite3.Connection, step: int) -> tuple[Batch, ...]:
    """Return the updates from ``step`` on, up to the first that is not all there."""
    updates: list[Batch] = []
    while True:
        batch_step = step + len(updates)
        groups = []
        for group_id, prompt_tokens in db.execute(
            "SELECT group_id, prompt_tokens FROM groups WHERE trained_step = ?", (batch_step,)
        ).fetchall():
            rollouts = _rollouts_of(db, group_id)
            (num_recorded,) = db.execute(
                "SELECT COUNT(*) FROM rollouts WHERE group_id = ?", (group_id,)
            ).fetchone()
            if len(rollouts) < num_recorded:
                return tuple(updates)
            groups.append(
                CompleteGroup(
                    group_id=GroupId(group_id),
                    prompt_tokens=prompt_tokens,
                    rollouts=tuple(rollouts[index] for index in sorted(rollouts)),
                )
            )
        if not groups:
            return tuple(updates)
        updates.append(Batch(step=batch_step, groups=in_order(groups)))


def _undo_updates(db: sqlite3.Connection, step: int) -> None:
    """Forget the updates from ``step`` on, of which something is missing."""
    db.execute("UPDATE rollouts SET trained_step = NULL WHERE trained_step >= ?", (step,))
    db.execute(
        "UPDATE groups SET trained_step = NULL, closed_unix_s = NULL WHERE trained_step >= ?",
        (step,),
    )
    db.execute("DELETE FROM versions WHERE version > ?", (step,))


def _leases_in_hand(db: sqlite3.Connection) -> tuple[LeaseRecord, ...]:
    return tuple(
        LeaseRecord(
            lease_id=LeaseId(lease_id),
            peer=PeerId(peer),
            session_id=session_id,
            min_version=PolicyVersion(min_version),
            deadline_step=deadline_step,
            granted_at_s=0.0,
            expires_at_s=0.0,
            samples=frozenset(
                (GroupId(group_id), index)
                for group_id, index in db.execute(
                    "SELECT group_id, sample_index FROM leased_samples WHERE lease_id = ?",
                    (lease_id,),
                )
            ),
            state=LeaseState.RESTARTED,
        )
        for lease_id, peer, session_id, min_version, deadline_step in db.execute(
            "SELECT lease_id, peer, session_id, min_version, deadline_step FROM leases "
            "WHERE outcome IS NULL ORDER BY lease_id DESC LIMIT ?",
            (MAX_REMEMBERED,),
        ).fetchall()
    )


def _contributions(db: sqlite3.Connection) -> dict[PeerId, Contribution]:
    refusals: dict[str, dict[Reason, int]] = {}
    for peer, reason, count in db.execute(
        "SELECT peer, reason, num_refused FROM refusals WHERE reason != ?",
        (Reason.ALREADY_ANSWERED,),
    ):
        refusals.setdefault(peer, {})[Reason(reason)] = count
    done = {
        peer: (num_accepted, num_trained)
        for peer, num_accepted, num_trained in db.execute(
            "SELECT peer, COUNT(*), COUNT(trained_step) FROM rollouts GROUP BY peer"
        )
    }
    return {
        PeerId(peer): Contribution(
            num_accepted=done.get(peer, (0, 0))[0],
            num_trained=done.get(peer, (0, 0))[1],
            refusals=refusals.get(peer, {}),
        )
        for peer in {*done, *refusals}
    }


def _rollouts_of(db: sqlite3.Connection, group_id: int) -> dict[int, AcceptedRollout]:
    return {
        index: AcceptedRollout(
            tokens=tokens,
            logprobs=logprobs,
            version=PolicyVersion(version),
            reward=reward,
            is_truncated=bool(is_truncated),
            peer=PeerId(peer),
            text=text,
        )
        for index, tokens, logprobs, version, reward, is_truncated, peer, text in db.execute(
            "SELECT sample_index, tokens, logprobs, version, reward, is_truncated, peer, text "
            "FROM rollouts WHERE group_id = ? AND tokens IS NOT NULL",
            (group_id,),
        )
    }


def _unusable(
    rollouts: dict[int, AcceptedRollout], *, step: int, max_staleness: int
) -> DropReason | None:
    verdicts = {
        judge(version=rollout.version, step=step, max_staleness=max_staleness)
        for rollout in rollouts.values()
    }
    if Freshness.FROM_THE_FUTURE in verdicts:
        return DropReason.RESUMED
    return DropReason.STALE if Freshness.STALE in verdicts else None
