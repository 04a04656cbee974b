"""What a run directory holds, as one record: ledger, metrics, events and last status.

Each source may be missing or cut off: what it would have told is then said to
be missing. The ledger is read as it lies, also while a learner writes to it.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from echo2swarm.report.engine_drift import Drift, NodeDrift, drift_of_nodes
from echo2swarm.report.fairness import Shares, read_shares
from echo2swarm.report.run_record import (
    Broadcast,
    EvalRecord,
    Interval,
    RunRecord,
    StepRecord,
    TimeSpan,
)
from echo2swarm.status.client import read_status
from echo2swarm.system.errors import StoreError, SwarmError
from echo2swarm.system.jsonl import aside, read_jsonl
from protocols.status import StatusReply

LEDGER_FORMATS: Final = (1, 2, 3)
_FORMAT_WITH_EVALUATIONS: Final = 3
APPLIED_EVENT: Final = "version.applied"
STARTED_EVENT: Final = "run.started"
PUBLISHED_EVENT: Final = "version.published"
SKIPPED_EVENTS: Final = frozenset({"prompts.skipped", "evaluation.prompts_skipped"})
MAX_SKIPPED: Final = 50
_LEDGER, _METRICS, _EVENTS = "ledger.sqlite", "metrics.jsonl", "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LedgerFacts:
    run_id: str = "unknown"
    max_staleness: int = 0
    staleness: tuple[tuple[int, int], ...] | None = None
    versions: tuple[tuple[int, int, float], ...] = ()
    """(version, payload bytes, when published)."""
    leases: tuple[tuple[str, float, float], ...] = ()
    """(peer, when granted, when its last rollout was accepted)."""
    names: dict[str, str] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    counts: tuple[tuple[str, int, int], ...] = ()
    """(peer, rollouts accepted, of these trained)."""
    shares: tuple[Shares, ...] = ()
    evaluations: tuple[EvalRecord, ...] = ()
    num_evaluations_dropped: int = 0


def read_run(run_dir: Path) -> RunRecord:
    """Return all that is known of the run in ``run_dir``.

    Raises:
        StoreError: there is neither a status nor a ledger: nothing to tell.
    """
    missing: list[str] = []
    status = _read_status(run_dir, missing)
    metrics = _read_lines(run_dir / _METRICS, missing)
    events = [
        *_read_lines(aside(run_dir / _EVENTS), []),  # Of a long run only.
        *_read_lines(run_dir / _EVENTS, missing),
    ]
    ledger = _read_ledger(run_dir / _LEDGER, missing)
    if status is None and ledger is None:
        raise StoreError(f"{run_dir} holds neither status.json nor {_LEDGER}: nothing to report on")
    ledger = ledger or _LedgerFacts()
    start_unix_s = _start(metrics, events, ledger)
    steps = tuple(_steps(metrics, start_unix_s))
    nodes = status.nodes if status else ()
    names = {**ledger.names, **{n.peer_id: n.name for n in nodes}}
    # The ledger notes what a node says when it joins, which may be before its engine is up.
    engines = {**ledger.engines, **{n.peer_id: n.engine for n in nodes}}
    ends = [s.end_s for s in steps] + [unix_s - start_unix_s for *_, unix_s in ledger.leases]
    return RunRecord(
        run_id=status.run_id if status else ledger.run_id,
        phase=status.phase if status else "unknown",
        num_steps=status.num_steps if status else len(steps),
        max_staleness=status.max_staleness if status else ledger.max_staleness,
        publish_every=status.publish_every if status else 1,
        duration_s=max(ends, default=0.0),
        steps=steps,
        staleness=ledger.staleness,
        broadcasts=_broadcasts(ledger, events, start_unix_s),
        training=tuple(TimeSpan(start_s=s.end_s - s.train_s, end_s=s.end_s) for s in steps),
        generation=_generation(ledger.leases, start_unix_s, names),
        learner_bytes_sent=status.payload_bytes_sent if status else None,
        nodes=nodes,
        refusals=status.refusals if status else (),
        worst_heartbeat_delay_s=status.worst_heartbeat_delay_s if status else None,
        missing=tuple(missing),
        shares=ledger.shares,
        contributions=_contributions(ledger.counts, drift_of_nodes(metrics), names, engines),
        evaluations=ledger.evaluations,
        num_evaluations_dropped=ledger.num_evaluations_dropped,
        skipped_prompts=_skipped_prompts(events),
    )


def step_record_of(record: dict[str, Any], *, start_unix_s: float = 0.0) -> StepRecord | None:
    """Return what a line of ``metrics.jsonl`` says of a step; None if it is about none."""
    step, unix_s = record.get("step"), record.get("unix_s")
    if not isinstance(step, int) or not isinstance(unix_s, int | float):
        return None
    return StepRecord(
        step=step,
        end_s=unix_s - start_unix_s,
        reward_mean=_number(record.get("reward_mean")),
        wait_s=_number(record.get("wait_s")) or 0.0,
        train_s=_number(record.get("train_s")) or 0.0,
        write_s=_number(record.get("write_s")) or 0.0,
        publish_s=_number(record.get("publish_s")) or 0.0,
        staleness=_histogram(record.get("staleness")),
    )


def _read_ledger(path: Path, missing: list[str]) -> _LedgerFacts | None:
    if not path.is_file():
        missing.append(f"{path.name}: staleness, versions and leases")
        return None
    try:
        with closing(_open_read_only(path)) as db:
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if found not in LEDGER_FORMATS:
                newest = max(LEDGER_FORMATS)
                missing.append(f"{path.name}: it has format {found}, this reads up to {newest}")
                return None
            meta = dict(db.execute("SELECT key, value FROM meta"))
            names = dict(db.execute("SELECT peer, name FROM nodes"))
            engines = dict(db.execute("SELECT peer, engine FROM nodes"))
            figures = _evaluation_figures(db) if found >= _FORMAT_WITH_EVALUATIONS else []
            return _LedgerFacts(
                run_id=meta.get("run_id", "unknown"),
                max_staleness=int(meta.get("max_staleness", 0)),
                staleness=tuple(
                    db.execute(
                        "SELECT trained_step - version, COUNT(*) FROM rollouts "
                        "WHERE trained_step IS NOT NULL GROUP BY 1 ORDER BY 1"
                    )
                ),
                versions=tuple(
                    db.execute(
                        "SELECT version, size_bytes, published_unix_s FROM versions ORDER BY 1"
                    )
                ),
                leases=tuple(
                    db.execute(
                        "SELECT leases.peer, granted_unix_s, MAX(accepted_unix_s) FROM leases "
                        "JOIN rollouts USING (lease_id) GROUP BY lease_id ORDER BY 2"
                    )
                ),
                names=names,
                engines=engines,
                counts=tuple(
                    db.execute(
                        "SELECT peer, COUNT(*), COUNT(trained_step) FROM rollouts "
                        "GROUP BY peer ORDER BY peer"
                    )
                ),
                shares=read_shares(db, names),
                evaluations=tuple(_evaluation(msgspec.json.decode(f)) for f in figures if f),
                num_evaluations_dropped=figures.count(None),
            )
    except sqlite3.Error as exc:
        missing.append(f"{path.name}: {exc}")
        return None


def _evaluation_figures(db: sqlite3.Connection) -> list[str | None]:
    """Return what the evaluations that have ended found, by version; None for nothing."""
    rows = db.execute("SELECT figures FROM evaluations WHERE outcome IS NOT NULL ORDER BY version")
    return [figures for (figures,) in rows]


def _evaluation(figures: dict[str, Any]) -> EvalRecord:
    return EvalRecord(
        version=figures["version"],
        num_prompts=figures["num_prompts"],
        num_prompts_wanted=figures["num_prompts_wanted"],
        samples_per_prompt=figures["samples_per_prompt"],
        mean_at_k=Interval(**figures["mean_at_k"]),
        pass_at_1=Interval(**figures["pass_at_1"]),
        pass_at_k=Interval(**figures["pass_at_k"]),
        num_failed=figures["num_failed"],
        took_s=figures["took_s"],
    )


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open a database without leaving anything beside it.

    Where there is a write-ahead log it is read too: a learner is running, or was killed,
    and its last minutes are in there.
    """
    has_log = path.with_name(f"{path.name}-wal").exists()
    how = "mode=ro" if has_log else "immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)


def _read_status(run_dir: Path, missing: list[str]) -> StatusReply | None:
    try:
        return read_status(run_dir)
    except SwarmError as exc:
        missing.append(f"nodes, bytes, refusals: {exc}")
        return None


def _read_lines(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """Return a file's records; what comes before a damaged line is of use."""
    records: list[dict[str, Any]] = []
    try:
        records.extend(read_jsonl(path))
    except StoreError as exc:
        missing.append(str(exc))
    return records


def _start(
    metrics: list[dict[str, Any]], events: list[dict[str, Any]], ledger: _LedgerFacts
) -> float:
    """Return when the run began, by whatever is told of it first.

    Starts that came to nothing, before there was a version, are not part of it.
    """
    told = [e for e in events if e.get("event") == STARTED_EVENT] or events[:1]
    starts = [t for e in told if (t := _number(e.get("unix_s"))) is not None]
    done = [t for record in metrics[:1] if (t := _number(record.get("unix_s"))) is not None]
    done += [unix_s for *_, unix_s in ledger.versions[:1]]
    if before := [t for t in starts if done and t <= min(done)]:
        return max(before)
    return min((*starts, *done), default=0.0)


def _steps(metrics: Iterable[dict[str, Any]], start_unix_s: float) -> Iterator[StepRecord]:
    """Yield the steps in order; of one done again after a crash, the last counts."""
    by_step: dict[int, StepRecord] = {}
    for record in metrics:
        step = step_record_of(record, start_unix_s=start_unix_s)
        if step is not None:
            by_step[step.step] = step
    return (by_step[step] for step in sorted(by_step))


def _broadcasts(
    ledger: _LedgerFacts, events: list[dict[str, Any]], start_unix_s: float
) -> tuple[Broadcast, ...]:
    broadcast_s = _broadcast_s(events)
    delta_bytes = _delta_bytes(events)
    return tuple(
        Broadcast(
            version=version,
            published_s=unix_s - start_unix_s,
            payload_bytes=size_bytes,
            delta_bytes=delta_bytes.get(version),
            applied_s=tuple(
                (name, unix_s - start_unix_s + seconds)
                for name, seconds in broadcast_s.get(version, {}).items()
            ),
        )
        for version, size_bytes, unix_s in ledger.versions
    )


def _broadcast_s(events: Iterable[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Return per version and node the seconds from publish to applied.

    A node that joined later than the publish measures its own start: it has none.
    """
    found: dict[int, dict[str, float]] = {}
    for event in events:
        if event.get("event") != APPLIED_EVENT:
            continue
        version, name = event.get("version"), event.get("name")
        seconds = _number(event.get("broadcast_s"))
        if isinstance(version, int) and isinstance(name, str) and seconds is not None:
            found.setdefault(version, {}).setdefault(name, seconds)
    return found


def _skipped_prompts(events: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Return the prompts that were left out, each once, with the reason; no more than some."""
    found: dict[str, None] = {}
    for event in events:
        which = event.get("which")
        if event.get("event") not in SKIPPED_EVENTS or not isinstance(which, list):
            continue
        why = event.get("why")
        for each in which:
            if isinstance(each, str) and len(found) < MAX_SKIPPED:
                found[f"{each} ({why})" if isinstance(why, str) and why else each] = None
    return tuple(found)


def _delta_bytes(events: Iterable[dict[str, Any]]) -> dict[int, int]:
    """Return per version the size of the delta from the newest one before it."""
    found: dict[int, int] = {}
    for event in events:
        if event.get("event") != PUBLISHED_EVENT:
            continue
        version, sizes = event.get("version"), event.get("delta_bytes")
        if isinstance(version, int) and isinstance(sizes, dict):
            by_base = {
                int(base): size
                for base, size in sizes.items()
                if base.isdecimal() and isinstance(size, int)
            }
            if by_base:
                found[version] = by_base[max(by_base)]
    return found


def _generation(
    leases: Iterable[tuple[str, float, float]], start_unix_s: float, names: dict[str, str]
) -> tuple[tuple[str, tuple[TimeSpan, ...]], ...]:
    spans: dict[str, list[TimeSpan]] = {}
    for peer, granted_unix_s, last_unix_s in leases:
        span = TimeSpan(start_s=granted_unix_s - start_unix_s, end_s=last_unix_s - start_unix_s)
        spans.setdefault(names.get(peer, peer[-8:]), []).append(span)
    return tuple((name, tuple(spans[name])) for name in sorted(spans))


def _contributions(
    counts: Iterable[tuple[str, int, int]],
    drifts: Mapping[str, Drift],
    names: Mapping[str, str],
    engines: Mapping[str, str],
) -> tuple[NodeDrift, ...]:
    found = [
        NodeDrift(
            engine=engines.get(peer, "not known"),
            node=names.get(peer, peer[-8:]),
            num_accepted=num_accepted,
            num_trained=num_trained,
            drift=drifts.get(peer, Drift()),
        )
        for peer, num_accepted, num_trained in counts
    ]
    return tuple(sorted(found, key=lambda each: (each.engine, each.node)))


def _histogram(value: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, dict):
        return ()
    return tuple(
        sorted(
            (int(age), num) for age, num in value.items() if age.isdigit() and isinstance(num, int)
        )
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
