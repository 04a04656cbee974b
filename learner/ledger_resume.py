"""Going back to a checkpoint: which recorded work is still of use to the step it holds."""

import sqlite3
from dataclasses import dataclass

from echo2swarm.freshness import Freshness, judge
from learner.groups import AcceptedRollout, DropReason
from learner.leasing import LeaseState
from protocols.ids import GroupId, PeerId, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedGroup:
    """A group that was leased and is neither trained nor dropped."""

    group_id: GroupId
    prompt_tokens: bytes
    rollouts: dict[int, AcceptedRollout]
    """By their place in the group; the others lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """What an earlier process left."""

    groups: tuple[OpenedGroup, ...]
    next_group: int
    """The first prompt that was never leased."""
    num_rollouts_undone: int
    """Rollouts whose updates came after the checkpoint, and are of no use before it."""


def resume(db: sqlite3.Connection, *, step: int, max_staleness: int, now_unix_s: float) -> LeftOver:
    """Undo what came after the checkpoint of ``step``; returns what can still be used.

    Updates from ``step`` on are undone. Their rollouts, and those not trained on, are kept
    where the checkpoint's step may use them; versions beyond it will be made anew, with
    other weights, so what was sampled with them is dropped.
    """
    db.execute("UPDATE rollouts SET trained_step = NULL WHERE trained_step >= ?", (step,))
    db.execute(
        "UPDATE groups SET trained_step = NULL, closed_unix_s = NULL WHERE trained_step >= ?",
        (step,),
    )
    db.execute("DELETE FROM versions WHERE version > ?", (step,))
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
    return LeftOver(
        groups=tuple(kept),
        next_group=0 if newest is None else newest + 1,
        num_rollouts_undone=num_undone,
    )


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
