"""Going on after a crash: what the ledger holds that the last checkpoint does not.

An update is recorded before its weights are published. So every version that a node may
hold can be made again: from the checkpoint, by the recorded updates, in their order. Then
nothing is lost, nothing is trained twice, and no version number stands for two policies.
"""

import sqlite3
from dataclasses import dataclass, field
from typing import Final

from echo2swarm.scheduling.leases.batcher import TrainingBatch, in_order
from echo2swarm.scheduling.leases.groups import AcceptedRollout, CompleteGroup, DropReason
from echo2swarm.scheduling.leases.lease_book import MAX_REMEMBERED, LeaseRecord, LeaseState
from echo2swarm.scheduling.leases.prompt_queue import MAX_PASSED, WINDOW
from echo2swarm.scheduling.staleness import Freshness, judge_staleness
from echo2swarm.system.errors import StoreError
from learner.ledger.evaluations import forget_after
from learner.ledger.meta import FORGOTTEN_BEFORE, Beginning, get_meta, read_beginning
from learner.scoring.messages import MAX_REWARD
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
class NodeTotals:
    """What a node has done for the run so far."""

    num_accepted: int = 0
    num_trained: int = 0
    refusals: dict[Reason, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """What an earlier process left."""

    updates: tuple[TrainingBatch, ...] = ()
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
    contributions: dict[PeerId, NodeTotals] = field(default_factory=dict)
    num_rollouts_undone: int = 0
    """Rollouts that neither the updates nor later ones can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """From which steps the recorded updates lead to where the run stands."""

    first_step: int
    """Where it began: 0, or the step that it was forked from."""
    oldest_step: int
    """From here on, updates can be made again."""
    step: int
    """Updates recorded."""

    def fault_of(self, step: int) -> str | None:
        """Return why a run can't go on from the checkpoint of ``step``; None if it can."""
        if step > self.step:
            return f"the ledger knows only {self.step} updates"
        if step < self.oldest_step:
            return (
                f"the rollouts of updates {step + 1} to {self.oldest_step}, which would have to "
                "be made again, are deleted"
            )
        return None


def reach(db: sqlite3.Connection) -> Reach:
    """Return from where a run with this ledger can go on."""
    first_step = read_beginning(db).step
    (newest,) = db.execute("SELECT MAX(trained_step) FROM groups").fetchone()
    return Reach(
        first_step=first_step,
        oldest_step=max(first_step, int(get_meta(db, FORGOTTEN_BEFORE) or 0)),
        step=first_step if newest is None else newest + 1,
    )


def resume_ledger(
    db: sqlite3.Connection,
    *,
    step: int,
    max_staleness: int,
    now_unix_s: float,
    are_same_prompts: bool = True,
) -> LeftOver:
    """Bring the ledger to where a run stands that goes on from the checkpoint of ``step``.

    Args:
        db: the ledger.
        step: of the checkpoint.
        max_staleness: of the rollouts that are kept.
        now_unix_s: the present.
        are_same_prompts: whether the task still makes the prompts that were leased; if not, those
            that lack results are given up, since nobody could score them.

    Raises:
        StoreError: not all updates since then can be made again: it would be another run.
    """
    found = reach(db)
    updates = _recorded_updates(db, step)
    step += len(updates)
    if step != found.step:
        raise StoreError(
            f"the ledger is damaged: of {found.step} updates on record, number {step + 1} is not "
            "whole; restore the ledger, or begin a new run from a checkpoint (echo2-learner fork)"
        )
    # Of a version that was noted, but whose update was lost with the power.
    db.execute("DELETE FROM versions WHERE version > ?", (step,))
    forget_after(db, step)
    leases = _end_leases(db, now_unix_s)
    kept: list[OpenedGroup] = []
    num_undone = 0
    for group in _open_groups(db):
        reason: DropReason | None = DropReason.RESUMED
        if are_same_prompts:
            reason = _unusable(group.rollouts, step=step, max_staleness=max_staleness)
        if reason is None:
            kept.append(group)
        else:
            num_undone += len(group.rollouts)
            _drop(db, group.group_id, reason, now_unix_s)
    next_group, skipped = _data_position(db)
    published = dict(db.execute("SELECT version, weights_sha256 FROM versions ORDER BY 1"))
    return LeftOver(
        updates=updates,
        weights_sha256=published.get(step),
        published=tuple(map(PolicyVersion, published)),
        groups=tuple(kept),
        leases=leases,
        contributions=_contributions(db),
        next_group=next_group,
        skipped=skipped,
        num_leases=_num_leases(db),
        num_rollouts_undone=num_undone,
    )


def _open_groups(db: sqlite3.Connection) -> list[OpenedGroup]:
    """Return the groups that are neither trained nor dropped."""
    return [
        OpenedGroup(
            group_id=GroupId(group_id),
            prompt_tokens=prompt_tokens,
            rollouts=_rollouts_of(db, group_id),
        )
        for group_id, prompt_tokens in db.execute(
            "SELECT group_id, prompt_tokens FROM groups "
            "WHERE trained_step IS NULL AND drop_reason IS NULL ORDER BY group_id"
        ).fetchall()
    ]


def _drop(db: sqlite3.Connection, group_id: GroupId, reason: DropReason, now_unix_s: float) -> None:
    """Close a group that can't be trained on, and forget what was sampled of it."""
    db.execute(
        "UPDATE groups SET drop_reason = ?, closed_unix_s = ? WHERE group_id = ?",
        (reason, now_unix_s, group_id),
    )
    db.execute("UPDATE rollouts SET tokens = NULL, logprobs = NULL WHERE group_id = ?", (group_id,))


def _recorded_updates(db: sqlite3.Connection, step: int) -> tuple[TrainingBatch, ...]:
    """Return the updates from ``step`` on, up to the first that is not all there."""
    updates: list[TrainingBatch] = []
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
        updates.append(TrainingBatch(step=batch_step, groups=in_order(groups)))


def beginning_at(db: sqlite3.Connection, step: int) -> Beginning:
    """Return where another run begins that goes on from the checkpoint of ``step`` of this one.

    It goes on with the prompts that no update before ``step`` was made of; those that this run
    dropped are dropped for it, too.
    """
    own = read_beginning(db)
    (newest,) = db.execute(
        "SELECT MAX(group_id) FROM groups WHERE trained_step < ?", (step,)
    ).fetchone()
    first_prompt = max(own.first_prompt, 0 if newest is None else newest + 1)
    first = max(own.first_prompt, first_prompt - 1 - MAX_SKIPPED_BEHIND)
    done = {
        group_id
        for (group_id,) in db.execute(
            "SELECT group_id FROM groups WHERE trained_step < ? OR drop_reason IS NOT NULL", (step,)
        )
    }
    candidates = [*own.skipped_prompts, *range(first, first_prompt)]
    return Beginning(
        step=step,
        first_prompt=first_prompt,
        skipped_prompts=tuple(index for index in candidates if index not in done),
    )


def _data_position(db: sqlite3.Connection) -> tuple[int, tuple[int, ...]]:
    """Return the first prompt after all that were leased, and those before it that were not."""
    beginning = read_beginning(db)
    (newest,) = db.execute("SELECT MAX(group_id) FROM groups").fetchone()
    next_group = max(beginning.first_prompt, 0 if newest is None else newest + 1)
    first = max(beginning.first_prompt, next_group - 1 - MAX_SKIPPED_BEHIND)
    candidates = [*beginning.skipped_prompts, *range(first, next_group)]
    leased = {
        group_id
        for (group_id,) in db.execute(
            "SELECT group_id FROM groups WHERE group_id >= ?", (min(candidates, default=0),)
        )
    }
    return next_group, tuple(index for index in candidates if index not in leased)


def _num_leases(db: sqlite3.Connection) -> int:
    (num_leases,) = db.execute("SELECT COUNT(*) FROM leases").fetchone()
    return int(num_leases)


def _end_leases(db: sqlite3.Connection, now_unix_s: float) -> tuple[LeaseRecord, ...]:
    """End the leases that nodes had in hand; returns them."""
    leases = _leases_in_hand(db)
    db.execute(
        "UPDATE leases SET outcome = ?, ended_unix_s = ? WHERE outcome IS NULL",
        (LeaseState.RESTARTED, now_unix_s),
    )
    return leases


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


def _contributions(db: sqlite3.Connection) -> dict[PeerId, NodeTotals]:
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
        PeerId(peer): NodeTotals(
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
        judge_staleness(version=rollout.version, step=step, max_staleness=max_staleness)
        for rollout in rollouts.values()
    }
    if Freshness.FROM_THE_FUTURE in verdicts:
        return DropReason.RESUMED
    if any(abs(rollout.reward) > MAX_REWARD for rollout in rollouts.values()):
        return DropReason.GAVE_UP  # accepted by older software; sums of it may overflow
    return DropReason.STALE if Freshness.STALE in verdicts else None
