"""One run on one screen: a status reply as something rich can print.

Pure: the same reply and width give the same text. What a node says of itself
is shown as text, never as markup or control codes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from echo2swarm.humane import (
    MISSING,
    bar,
    format_bytes,
    format_count,
    format_mbit,
    format_percent,
    format_rate,
    format_seconds,
    printable,
    rod,
    trouble_text,
)
from echo2swarm.rates import Phase
from echo2swarm.status_evaluation import evaluation_facts
from echo2swarm.status_health import ENDED_PHASES, STALE_AFTER_S
from echo2swarm.status_outlook import forecast_text, outlook_facts
from protocols.activation import Directive, NodeState
from protocols.ids import PeerId, short
from protocols.status import NodeStatus, Reachability, ReasonCount, StatusReply

WIDE_COLUMNS: Final = 120
"""From this width on, a node's line tells of its price and what it moved."""
VERY_WIDE_COLUMNS: Final = 150
"""From this width on, a node's line tells of its link, too."""

_PHASE_STYLES: Final = {"failed": "bold red", "finished": "bold green", "training": "green"}
_STATE_STYLES: Final = {
    NodeState.ACTIVE: "green",
    NodeState.LEFT: "dim",
    NodeState.DRAINING: "dim",
    NodeState.PAUSED: "dim",
}
_MAX_STALENESS_SHOWN: Final = 8
_OLD_S: Final = 5.0
_MIN_REFUSAL_CHARS: Final = 8
_MAX_WARNINGS_SHOWN: Final = 3
_MAX_STANDING_BY_SHOWN: Final = 4


def status_view(
    status: StatusReply, *, width: int, age_s: float = 0.0, plain: bool = False
) -> RenderableType:
    """Return the run's state, laid out for ``width`` columns.

    Args:
        status: what the learner answered.
        width: of the screen, in characters.
        age_s: how old the answer is; said if it is more than a few seconds.
        plain: ASCII only and without frames, for files and pipes.
    """
    header = _header(status, width=width, age_s=age_s, plain=plain)
    title = Text.assemble(
        ("run ", "dim"),
        (status.run_id, "bold"),
        ("  ", ""),
        (printable(status.phase, max_chars=40), _PHASE_STYLES.get(status.phase, "cyan")),
    )
    framed: RenderableType = (
        Group(title, header)
        if plain
        else Panel(header, title=title, title_align="left", box=box.ROUNDED, padding=(0, 1))
    )
    return Group(framed, _nodes(status, width=width, plain=plain))


def eta_s(status: StatusReply) -> float | None:
    """Return how long the rest of the run will take at the present pace; None if unknown."""
    num_left = status.num_steps - status.learner_step
    if num_left <= 0:
        return 0.0
    if status.train_s is not None and status.busy_share > 0:
        return num_left * status.train_s / status.busy_share
    return None


def refusals_text(refusals: Iterable[ReasonCount]) -> str:
    """Return the reasons and their counts, most frequent first."""
    counted = sorted(refusals, key=lambda r: (-r.count, r.reason.value))
    return ", ".join(f"{r.reason.value} {r.count}" for r in counted if r.count) or "none"


def staleness_text(status: StatusReply, *, width: int, plain: bool) -> str:
    """Return the staleness histogram as a bar chart on one line."""
    counts = sorted((c.staleness, c.num_rollouts) for c in status.staleness)
    total = sum(n for _, n in counts)
    if not total:
        return "nothing trained yet"
    shown = counts[:_MAX_STALENESS_SHOWN]
    labels = [f"{s}: {n}" for s, n in shown]
    room = max(1, (width - sum(len(label) + 3 for label in labels)) // len(shown))
    room = min(room, 12)
    parts = [
        f"{label} {rod(n / total, width=room, ascii_only=plain)}".rstrip()
        for label, (_, n) in zip(labels, shown, strict=True)
    ]
    more = ["..."] if len(counts) > len(shown) else []
    return "  ".join(parts + more)


def _header(status: StatusReply, *, width: int, age_s: float, plain: bool) -> Table:
    inner = width - (0 if plain else 4) - 11
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, width=9)
    grid.add_column(overflow="fold")
    for label, value in _facts(status, inner=inner, age_s=age_s, plain=plain):
        grid.add_row(label, value)
    return grid


def _facts(
    status: StatusReply, *, inner: int, age_s: float, plain: bool
) -> list[tuple[str, RenderableType]]:
    wide = inner >= 90
    is_over = status.phase in ENDED_PHASES or age_s > STALE_AFTER_S
    facts: list[tuple[str, RenderableType]] = [
        ("step", _progress(status, width=40 if wide else 20, plain=plain)),
        (
            "version",
            f"{status.newest_version}, published every {_steps(status.publish_every)}; "
            f"staleness at most {status.max_staleness}",
        ),
        ("learner", _shares(status, width=20 if wide else 10, plain=plain)),
        ("rollouts", _supply(status)),
        ("staleness", staleness_text(status, width=inner, plain=plain)),
        (
            "update",
            "   ".join(
                (
                    f"reward {_optional(status.reward_mean, '.3f')}",
                    f"train {format_seconds(status.train_s)}",
                )
            ),
        ),
        *evaluation_facts(status.evaluation),
        *outlook_facts(status.outlook, plain=plain),
        ("weights", _weights(status, wide=wide)),
        (
            "refused",
            Text(refusals_text(status.refusals), style="yellow" if status.refusals else ""),
        ),
        (
            "loop",
            f"at most {format_seconds(status.worst_heartbeat_delay_s)} late;  "
            f"up {format_seconds(status.uptime_s)}",
        ),
    ]
    warned = [node for node in sort_nodes(status.nodes) if node.warning]
    for node in warned[:_MAX_WARNINGS_SHOWN]:
        name = printable(node.name, max_chars=14) or "node"
        text = f"{name} {short(PeerId(node.peer_id))}: {printable(node.warning)}"
        facts.append(("warning", Text(text, style="bold red")))
    troubled = [node for node in sort_nodes(status.nodes) if node.is_connected and node.trouble]
    for node in troubled[:_MAX_WARNINGS_SHOWN]:
        if node.trouble is not None:
            name = printable(node.name, max_chars=14) or "node"
            text = f"{name} {short(PeerId(node.peer_id))} says {trouble_text(node.trouble)}"
            facts.append(("trouble", Text(text, style="yellow")))
    for node in [n for n in sort_nodes(status.nodes) if n.num_left_out][:_MAX_WARNINGS_SHOWN]:
        name = printable(node.name, max_chars=14) or "node"
        text = f"{node.num_left_out} rollouts of {name} {short(PeerId(node.peer_id))}"
        facts.append(("left out", Text(text)))
    facts += _standing_by(status)
    facts += _absence(status, age_s=age_s)
    if status.advice and not is_over:
        facts.append(("advice", Text(printable(status.advice, max_chars=400), style="bold")))
    return facts


def _absence(status: StatusReply, *, age_s: float) -> list[tuple[str, RenderableType]]:
    """Return what to say if this is not how things are now."""
    style, old = "bold yellow", f"this is {format_seconds(age_s)} old"
    resume = "echo2-learner serve --resume --run-dir RUN goes on with the run"
    if status.phase in (Phase.STOPPED, Phase.FAILED):
        return [("next", Text(f"no learner is at work; {resume}", style=style))]
    if status.phase == Phase.FINISHED or age_s <= _OLD_S:
        return []
    if age_s <= STALE_AFTER_S:
        return [("age", Text(old, style=style))]
    return [("age", Text(f"{old}: is the learner at work? If not, {resume}", style=style))]


def _standing_by(status: StatusReply) -> list[tuple[str, RenderableType]]:
    """Return why nodes that could work don't."""
    resting = [
        node
        for node in sort_nodes(status.nodes)
        if node.is_connected and node.directive == Directive.STANDBY and node.why
    ]
    facts: list[tuple[str, RenderableType]] = []
    for node in resting[:_MAX_STANDING_BY_SHOWN]:
        name = printable(node.name, max_chars=14) or short(PeerId(node.peer_id))
        why = printable(node.why.removeprefix("standby: "), max_chars=200)
        facts.append(("standby", f"{name}: {why}"))
    if len(resting) > _MAX_STANDING_BY_SHOWN:
        facts.append(("", f"and {len(resting) - _MAX_STANDING_BY_SHOWN} more stand by"))
    return facts


def _progress(status: StatusReply, *, width: int, plain: bool) -> str:
    share = status.learner_step / status.num_steps if status.num_steps else 0.0
    text = (
        f"{status.learner_step} of {status.num_steps}  "
        f"{bar(share, width=width, ascii_only=plain)}  {format_percent(share)}"
    )
    remaining = None if status.phase in ENDED_PHASES else eta_s(status)
    return text if not remaining else f"{text}  {format_seconds(remaining)} to go"


def _shares(status: StatusReply, *, width: int, plain: bool) -> str:
    return (
        f"busy {bar(status.busy_share, width=width, ascii_only=plain)} "
        f"{format_percent(status.busy_share)}   "
        f"waiting {bar(status.bubble_share, width=width, ascii_only=plain)} "
        f"{format_percent(status.bubble_share)}   "
        f"over {format_seconds(min(status.window_s, status.uptime_s))}"
        f"{forecast_text(status.outlook)}"
    )


def _weights(status: StatusReply, *, wide: bool) -> str:
    rate = format_mbit(status.upload_bytes_per_s)
    at_rate = f" at up to {rate} Mbit/s" if wide and rate != MISSING else ""
    return (
        f"to all nodes in {format_seconds(status.broadcast_s)}, the links allow "
        f"{format_seconds(status.expected_broadcast_s)};  "
        f"sent {format_bytes(status.payload_bytes_sent)}{at_rate}"
    )


def _supply(status: StatusReply) -> Text:
    supplied, needed = status.supplied_rollouts_per_s, status.needed_rollouts_per_s
    is_short = needed is not None and supplied < needed
    return Text.assemble(
        (f"{format_rate(supplied)}/s supplied", "yellow" if is_short else ""),
        f", {format_rate(needed)}/s needed;  {status.num_buffered} buffered, "
        f"{status.num_in_flight} in flight",
    )


def _nodes(status: StatusReply, *, width: int, plain: bool) -> RenderableType:
    if not status.nodes:
        return Text("no node has joined yet", style="dim")
    columns = [c for c in _COLUMNS if width >= c.from_width]
    rows = [
        [column.cell(node, status.newest_version) for column in columns]
        for node in sort_nodes(status.nodes)
    ]
    widths = [
        max(len(column.title), *(cell.cell_len for cell in cells))
        for column, cells in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    # Whatever is cut is the one column that says at length what ``status --json`` has in full.
    flexible = next((i for i, column in enumerate(columns) if column.is_flexible), None)
    if flexible is not None:
        gaps = len(columns) - 1 if plain else len(columns) + 1
        room = max(_MIN_REFUSAL_CHARS, width - gaps - sum(widths) + widths[flexible])
        for row in rows:
            row[flexible] = Text(printable(row[flexible].plain, max_chars=room))
    table = Table(
        box=None if plain else box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0) if plain else 0,
        pad_edge=False,
        header_style="bold",
    )
    for column in columns:
        table.add_column(column.title, no_wrap=True, justify=column.justify)
    for row in rows:
        table.add_row(*row)
    if status.num_nodes_left_out:
        more = f"and {status.num_nodes_left_out} more nodes, which do less or nothing"
        return Group(table, Text(more, style="dim"))
    return table


def sort_nodes(nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Return the nodes as they are listed: present ones first, by name."""
    return sorted(
        nodes,
        key=lambda n: (n.state is NodeState.LEFT, not n.is_connected, n.name, n.peer_id),
    )


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count} steps"


def _optional(value: float | None, spec: str) -> str:
    return MISSING if value is None or not math.isfinite(value) else format(value, spec)


def _state_cell(node: NodeStatus, _newest_version: int) -> Text:
    if not node.is_connected and node.state is not NodeState.LEFT:
        return Text(f"lost {format_seconds(node.seconds_since_heartbeat)}", style="bold red")
    return Text(node.state.value, style=_STATE_STYLES.get(node.state, "cyan"))


def _version_cell(node: NodeStatus, newest_version: int) -> Text:
    if node.applied_version is None:
        return Text(MISSING)
    lag = newest_version - node.applied_version
    if lag == 0:
        return Text(str(node.applied_version))
    return Text(f"{node.applied_version} (-{lag})", style="yellow")


def _link_cell(node: NodeStatus, _newest_version: int) -> Text:
    up, down = format_mbit(node.upload_bytes_per_s), format_mbit(node.download_bytes_per_s)
    return Text(f"{up} / {down}")


def _speed_cell(node: NodeStatus, _newest_version: int) -> Text:
    """Return rollouts per second while it has work; what rests on its own trial is marked."""
    if node.speed_rollouts_per_s is None:
        return Text(MISSING)
    rate = format_rate(node.speed_rollouts_per_s)
    return Text(f"~{rate}", style="dim") if node.is_speed_prior else Text(rate)


def _peers_cell(node: NodeStatus, _newest_version: int) -> Text:
    if node.reachability is Reachability.NO:
        return Text(f"{node.num_neighbours} out", style="yellow")
    return Text(str(node.num_neighbours))


def _refused_cell(node: NodeStatus, _newest_version: int) -> Text:
    num_refused = sum(r.count for r in node.refusals)
    return Text(format_count(num_refused), style="yellow" if num_refused else "")


def _text(value: Callable[[NodeStatus], str]) -> Callable[[NodeStatus, int], Text]:
    return lambda node, _newest_version: Text(value(node))


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cell: Callable[[NodeStatus, int], Text]
    justify: Literal["left", "right"] = "left"
    from_width: int = 0
    is_flexible: bool = False


_COLUMNS: Final = (
    _Column("node", _text(lambda n: printable(n.name, max_chars=14) or short(PeerId(n.peer_id)))),
    _Column("id", _text(lambda n: short(PeerId(n.peer_id))), from_width=WIDE_COLUMNS),
    _Column("state", _state_cell),
    _Column(
        "wanted", _text(lambda n: printable(n.directive, max_chars=8)), from_width=WIDE_COLUMNS
    ),
    _Column("version", _version_cell, "right"),
    _Column("roll/s", _text(lambda n: format_rate(n.rollouts_per_s)), "right"),
    _Column("accept", _text(lambda n: format_count(n.num_accepted)), "right"),
    _Column("train", _text(lambda n: format_count(n.num_trained)), "right", from_width=66),
    _Column("refuse", _refused_cell, "right"),
    _Column(
        "last refusal",
        _text(lambda n: printable(n.last_refusal, max_chars=120) or MISSING),
        is_flexible=True,
        from_width=80,
    ),
    _Column("B", _text(lambda n: format_seconds(n.broadcast_s)), "right", from_width=74),
    _Column(
        "$/h", _text(lambda n: _optional(n.usd_per_hour, ".2f")), "right", from_width=WIDE_COLUMNS
    ),
    _Column(
        "up", _text(lambda n: format_bytes(n.payload_bytes_sent)), "right", from_width=WIDE_COLUMNS
    ),
    _Column(
        "down",
        _text(lambda n: format_bytes(n.payload_bytes_received)),
        "right",
        from_width=WIDE_COLUMNS,
    ),
    _Column("speed", _speed_cell, "right", from_width=VERY_WIDE_COLUMNS),
    _Column("Mbit/s", _link_cell, "right", from_width=VERY_WIDE_COLUMNS),
    _Column("peers", _peers_cell, "right", from_width=VERY_WIDE_COLUMNS),
)
