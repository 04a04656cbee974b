"""A run's report: text with pictures for people, figures as JSON for programs.

Everything comes from what the run left in its directory; what is not there is
said to be missing, and never filled in.
"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from echo2swarm.report.engine_drift import by_engine
from echo2swarm.report.engines import engines_text
from echo2swarm.report.plots import write_run_plots
from echo2swarm.report.run_reader import read_run
from echo2swarm.report.run_record import (
    WINDOW_STEPS,
    EvalRecord,
    Interval,
    RunRecord,
    busy_share,
    overlap_s,
    reward_gain,
)
from echo2swarm.status.view import refusals_text, sort_nodes
from echo2swarm.system.errors import UsageError
from echo2swarm.text.format import (
    format_bytes,
    format_percent,
    format_seconds,
    printable,
    table_cell,
)
from protocols.ids import PeerId, short

_UNKNOWN: Final = "not known"


def write_report(run_dir: Path, out_dir: Path) -> Path:
    """Write ``report.md``, ``report.json`` and the pictures; return the path of the text.

    Raises:
        UsageError: ``run_dir`` is no directory.
        SwarmError: what lies there is damaged, or there is nothing to report on.
    """
    record = _read(run_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    plots = write_run_plots(record, out_dir)
    figures = summarize_run(record)
    path = out_dir / "report.md"
    path.write_text(report_text(record, figures, plots))
    (out_dir / "report.json").write_bytes(_as_json(figures))
    return path


def figures_json(run_dir: Path) -> bytes:
    """Return the figures of the report as JSON, and write nothing.

    Raises:
        UsageError: ``run_dir`` is no directory.
        SwarmError: what lies there is damaged, or there is nothing to report on.
    """
    return _as_json(summarize_run(_read(run_dir)))


def _read(run_dir: Path) -> RunRecord:
    if not run_dir.is_dir():
        raise UsageError(f"{run_dir}: no such run directory")
    return read_run(run_dir)


def _as_json(figures: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n"


def summarize_run(record: RunRecord) -> dict[str, Any]:
    """Return the run's figures; None where the run directory does not tell."""
    gain = reward_gain(record.rewards)
    generating = [s for _, spans in record.generation for s in spans]
    startup_s = record.steps[0].wait_s if record.steps else None
    total_train_s = sum(s.train_s for s in record.steps)
    return {
        "run_id": record.run_id,
        "phase": record.phase,
        "steps_done": record.steps[-1].step if record.steps else 0,
        "num_steps": record.num_steps,
        "duration_s": record.duration_s,
        "reward_first": gain[0] if gain else None,
        "reward_last": gain[1] if gain else None,
        "reward_gain": gain[1] - gain[0] if gain else None,
        "evaluations": [asdict(point) for point in record.evaluations],
        "num_evaluations_dropped": record.num_evaluations_dropped,
        "max_staleness_allowed": record.max_staleness,
        "max_staleness_trained": max((s for s, _ in record.staleness or ()), default=None),
        "staleness": {str(s): n for s, n in record.staleness} if record.staleness else None,
        "rollouts_trained": (
            sum(n for _, n in record.staleness) if record.staleness is not None else None
        ),
        "busy_share": busy_share(record.steps),
        "startup_s": startup_s,
        "wait_s": sum(s.wait_s for s in record.steps[1:]),
        "train_s": total_train_s,
        "write_s": sum(s.write_s for s in record.steps),
        "publish_s": sum(s.publish_s for s in record.steps),
        "generating_while_training_share": (
            overlap_s(record.training, generating) / total_train_s
            if total_train_s and record.training and generating
            else None
        ),
        **_broadcast_figures(record),
        "refusals": {r.reason.value: r.count for r in record.refusals},
        "worst_heartbeat_delay_s": record.worst_heartbeat_delay_s,
        "num_nodes": len(record.nodes),
        "engines": [each.as_dict() for each in by_engine(record.contributions)],
        "contributions": [each.as_dict() for each in record.contributions],
        "shares": [shares.as_dict() for shares in record.shares],
        "skipped_prompts": list(record.skipped_prompts),
        "missing": list(record.missing),
    }


def _broadcast_figures(record: RunRecord) -> dict[str, Any]:
    """Return how large the published versions were, who sent them, and how long they took."""
    payloads = [b.payload_bytes for b in record.broadcasts if b.payload_bytes is not None]
    published_bytes = sum(payloads)
    deltas = sorted(b.delta_bytes for b in record.broadcasts if b.delta_bytes is not None)
    shares = sorted(
        b.delta_bytes / b.payload_bytes
        for b in record.broadcasts
        if b.delta_bytes is not None and b.payload_bytes
    )
    spreads = sorted(b.spread_s for b in record.broadcasts if b.spread_s is not None)
    peers_sent = sum(n.payload_bytes_sent for n in record.nodes) if record.nodes else None
    return {
        "versions_published": len(record.broadcasts),
        "payload_bytes_published": published_bytes if payloads else None,
        "versions_with_delta": len(deltas),
        "delta_median_bytes": deltas[len(deltas) // 2] if deltas else None,
        "delta_median_share": shares[len(shares) // 2] if shares else None,
        "learner_bytes_sent": record.learner_bytes_sent,
        "peer_bytes_sent": peers_sent,
        "learner_copies": (
            record.learner_bytes_sent / published_bytes
            if record.learner_bytes_sent is not None and published_bytes
            else None
        ),
        "learner_bytes_share": (
            record.learner_bytes_sent / (record.learner_bytes_sent + peers_sent)
            if record.learner_bytes_sent is not None and peers_sent
            else None
        ),
        "broadcast_median_s": spreads[len(spreads) // 2] if spreads else None,
        "broadcast_worst_s": spreads[-1] if spreads else None,
    }


def report_text(record: RunRecord, figures: dict[str, Any], plots: dict[str, str]) -> str:
    """Return the report as Markdown."""
    parts = [
        f"# Run {record.run_id}",
        _verdict(record, figures),
        _section("Reward", _picture("reward", plots), _reward(figures)),
        *(
            [_section("Evaluation", _picture("evaluation", plots), _evaluation(record))]
            if record.evaluations or record.num_evaluations_dropped
            else []
        ),
        _section("Staleness", _picture("staleness", plots), _staleness(record, figures)),
        _section("Time", _picture("phases", plots), _time(figures)),
        _section("Overlap", _picture("overlap", plots), _overlap(figures)),
        _section(
            "Broadcast",
            _picture("bytes", plots),
            _picture("broadcast", plots),
            _broadcast(record, figures),
        ),
        _section("Nodes", _nodes(record)),
        _section("Engines", engines_text(record.contributions)),
        _section("Shares", _picture("shares", plots), _shares(record)),
        _section("Refused", f"By the learner, by reason: {refusals_text(record.refusals)}."),
    ]
    if record.skipped_prompts:
        lines = (f"- {printable(each, max_chars=400)}" for each in record.skipped_prompts)
        told = "These were left out, in training or evaluation:"
        parts.append(_section("Skipped prompts", told, "\n".join(lines)))
    if record.missing:
        parts.append(
            _section("Missing", *(f"- {printable(m, max_chars=400)}" for m in record.missing))
        )
    return "\n\n".join(parts) + "\n"


def _section(title: str, *paragraphs: str) -> str:
    return "\n\n".join((f"## {title}", *(p for p in paragraphs if p)))


def _picture(name: str, plots: dict[str, str]) -> str:
    return f"![{name}]({plots[name]})" if name in plots else ""


def _verdict(record: RunRecord, figures: dict[str, Any]) -> str:
    return (
        f"{figures['steps_done']} of {record.num_steps} steps in "
        f"{format_seconds(record.duration_s)}; the run is {printable(record.phase)}."
    )


def _reward(figures: dict[str, Any]) -> str:
    if figures["reward_gain"] is None:
        return "Too few steps to compare."
    return (
        f"Mean of the first steps {figures['reward_first']:.3f}, of the last "
        f"{figures['reward_last']:.3f}: {figures['reward_gain']:+.3f} (up to {WINDOW_STEPS} "
        "steps each)."
    )


def _evaluation(record: RunRecord) -> str:
    dropped = record.num_evaluations_dropped
    found = record.evaluations
    told = f"{_evaluations(dropped)} found nothing: see `evaluation.dropped` in events.jsonl."
    if not found:
        return told
    first, last, k = found[0], found[-1], found[-1].samples_per_prompt
    rows = [
        f"| {point.version} | {_interval(point.mean_at_k)} | {_interval(point.pass_at_1)} "
        f"| {_interval(point.pass_at_k)} | {_prompts(point)} | {format_seconds(point.took_s)} |"
        for point in found
    ]
    return "\n".join(
        (
            f"On held-out prompts, which are never trained on: mean@{k} "
            f"{_interval(first.mean_at_k)} of version {first.version}, "
            f"{_interval(last.mean_at_k)} of version {last.version}. Every figure is of one "
            f"version; in brackets, 95 % confidence over prompts.{f' {told}' if dropped else ''}",
            "",
            f"| version | mean@{k} | pass@1 | pass@{k} | prompts | took |",
            "|---:|---|---|---|---:|---:|",
            *rows,
        )
    )


def _evaluations(num: int) -> str:
    return "One evaluation" if num == 1 else f"{num} evaluations"


def _prompts(point: EvalRecord) -> str:
    if point.is_complete:
        return str(point.num_prompts)
    return f"{point.num_prompts} of {point.num_prompts_wanted}"


def _interval(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _staleness(record: RunRecord, figures: dict[str, Any]) -> str:
    if record.staleness is None:
        return "The ledger could not be read."
    if not record.staleness:
        return "No rollout has been trained on."
    rows = [f"| {s} | {n} |" for s, n in record.staleness]
    return "\n".join(
        (
            f"Counted in the ledger: {figures['rollouts_trained']} rollouts; the stalest was "
            f"{figures['max_staleness_trained']} steps old, allowed are {record.max_staleness}.",
            "",
            "| staleness | rollouts |",
            "|---:|---:|",
            *rows,
        )
    )


def _time(figures: dict[str, Any]) -> str:
    busy = figures["busy_share"]
    return (
        f"The first batch was there after {_seconds(figures['startup_s'])}. "
        f"Training {format_seconds(figures['train_s'])}, waiting for further rollouts "
        f"{format_seconds(figures['wait_s'])}, writing weights "
        f"{format_seconds(figures['write_s'])}; publishing, beside it, "
        f"{format_seconds(figures['publish_s'])}. "
        f"After the first step the learner trained "
        f"{_UNKNOWN if busy is None else format_percent(busy)} of the time. The longest that its "
        f"event loop was late: {_seconds(figures['worst_heartbeat_delay_s'])}."
    )


def _overlap(figures: dict[str, Any]) -> str:
    share = figures["generating_while_training_share"]
    if share is None:
        return "The events do not tell when nodes generated."
    return f"During {format_percent(share)} of the training time, nodes were generating."


def _broadcast(record: RunRecord, figures: dict[str, Any]) -> str:
    sent, peers = figures["learner_bytes_sent"], figures["peer_bytes_sent"]
    copies, share = figures["learner_copies"], figures["learner_bytes_share"]
    return (
        f"{figures['versions_published']} versions, "
        f"{_bytes(figures['payload_bytes_published'])} together. {_deltas(figures)} "
        f"The learner sent {_bytes(sent)}"
        + (f", {copies:.2f} copies of each," if copies is not None else "")
        + f" to {len(record.nodes)} nodes; nodes sent each other {_bytes(peers)}"
        + (f": the learner's share is {format_percent(share)}. " if share is not None else ". ")
        + "A node that is behind skips versions, so not every copy travels. "
        f"From publish to applied by the last node: median "
        f"{_seconds(figures['broadcast_median_s'])}, worst "
        f"{_seconds(figures['broadcast_worst_s'])}."
    )


def _deltas(figures: dict[str, Any]) -> str:
    if not figures["versions_with_delta"]:
        return "All of them travelled whole."
    return (
        f"{figures['versions_with_delta']} were offered as deltas too: who held the version before "
        f"fetched {_bytes(figures['delta_median_bytes'])} (median), "
        f"{100 * (figures['delta_median_share'] or 0):.1f} % of the whole."
    )


def _nodes(record: RunRecord) -> str:
    if not record.nodes:
        return "None is known."
    head = (
        "| node | id | engine | accepted | trained | refused | last refusal | restarts "
        "| sent | received |",
        "|---|---|---|---:|---:|---|---|---:|---:|---:|",
    )
    rows = [
        f"| {table_cell(n.name)} | {short(PeerId(n.peer_id))} | {table_cell(n.engine)} "
        f"| {n.num_accepted} | {n.num_trained} | {refusals_text(n.refusals)} "
        f"| {table_cell(n.last_refusal)} | {n.num_engine_restarts} "
        f"| {format_bytes(n.payload_bytes_sent)} | {format_bytes(n.payload_bytes_received)} |"
        for n in sort_nodes(record.nodes)
    ]
    return "\n".join((*head, *rows))


def _shares(record: RunRecord) -> str:
    if not any(shares.kinds for shares in record.shares):
        return "No rollout is on record."
    starved = [
        f"{shares.by} {table_cell(kind.name)} "
        f"({format_percent(shares.issued_share(kind))} of what was issued, "
        f"{format_percent(shares.trained_share(kind))} of what was trained on)"
        for shares in record.shares
        for kind in shares.starved
    ]
    head = (
        "| by | kind | issued | accepted | trained | share issued | share trained |",
        "|---|---|---:|---:|---:|---:|---:|",
    )
    rows = [
        f"| {shares.by} | {table_cell(kind.name)} | {kind.num_issued} | {kind.num_accepted} "
        f"| {kind.num_trained} | {format_percent(shares.issued_share(kind))} "
        f"| {format_percent(shares.trained_share(kind))} |"
        for shares in record.shares
        for kind in shares.kinds
    ]
    verdict = f"Starved: {'; '.join(starved)}." if starved else "Nothing is starved."
    return "\n".join((verdict, "", *head, *rows))


def _bytes(num_bytes: int | None) -> str:
    return _UNKNOWN if num_bytes is None else format_bytes(num_bytes)


def _seconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None or math.isnan(seconds) else format_seconds(seconds)
