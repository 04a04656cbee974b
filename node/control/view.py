"""A node's state as its owner reads it."""

import time
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from echo2swarm.text.format import (
    MISSING,
    bar,
    format_bytes,
    format_count,
    format_mbit,
    format_rate,
    format_seconds,
    printable,
)
from node.control.messages import NodePhase, NodeSnapshot
from protocols.ids import PeerId, short

_STYLES: Final = {
    NodePhase.GENERATING: "bold green",
    NodePhase.IDLE: "green",
    NodePhase.STANDBY: "cyan",
    NodePhase.PAUSED: "yellow",
    NodePhase.DRAINING: "yellow",
    NodePhase.JOINING: "magenta",
}
_BAR_WIDTH: Final = 20


def node_view(node: NodeSnapshot, *, width: int, plain: bool = False) -> RenderableType:
    """Return a node's state, laid out for ``width`` columns.

    Args:
        node: what it has told.
        width: of the screen, in characters.
        plain: ASCII only and without frames, for files and pipes.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="" if plain else "dim", no_wrap=True)
    table.add_column()
    for name, value in node_facts(node, plain=plain):
        table.add_row(name, value)
    title = f"{printable(node.name, max_chars=40)}  run {node.run_id}"
    if plain:
        outer = Table.grid()
        outer.add_row(title)
        outer.add_row(table)
        return outer
    return Panel(table, title=title, title_align="left", box=box.ROUNDED, width=min(width, 110))


def node_facts(node: NodeSnapshot, *, plain: bool = False) -> list[tuple[str, RenderableType]]:
    """Return the lines, by name."""
    style = _STYLES.get(node.phase, "")
    doing = Text(printable(node.doing, max_chars=400))
    facts: list[tuple[str, RenderableType]] = [
        ("now", Text.assemble((node.phase.value, style), ": ", doing))
    ]
    if node.download is not None and node.download.total_bytes:
        share = node.download.held_bytes / node.download.total_bytes
        facts.append(("download", bar(share, width=_BAR_WIDTH, ascii_only=plain)))
    if node.owner.until_unix_s is not None:
        at = time.strftime("%a %H:%M", time.localtime(node.owner.until_unix_s))
        facts.append(("until", at))
    facts += [
        ("learner", _learner(node)),
        ("version", _versions(node)),
        ("done", _done(node)),
    ]
    if node.contribution.refused:
        counts = node.contribution.refused
        words = ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items()))
        facts.append(("refused", Text(words, style="yellow")))
    facts += [
        ("worth", _worth(node)),
        ("engine", _engine(node)),
        ("link", _link(node)),
        ("limits", _limits(node)),
        ("node", f"up {format_seconds(node.uptime_s)}, process {node.pid}, {node.state_dir}"),
    ]
    if node.learner.warning:
        facts.append(("warning", Text(printable(node.learner.warning), style="bold yellow")))
    return facts


def _learner(node: NodeSnapshot) -> Text:
    learner = node.learner
    name = short(PeerId(learner.peer_id))
    if learner.is_answering:
        return Text(f"{name} answers; it says {learner.directive or 'nothing yet'}")
    is_told = learner.error in node.doing  # the line before has it
    why = f": {printable(learner.error)}" if learner.error and not is_told else ""
    if learner.silent_s is None:
        return Text(f"{name} has not answered yet{why}", style="yellow")
    ago = format_seconds(learner.silent_s)
    return Text(f"{name} does not answer (last {ago} ago){why}", style="yellow")


def _versions(node: NodeSnapshot) -> Text:
    text = Text(_version_text(node))
    if node.versions.trouble:
        text.append(f"; it can't be fetched: {printable(node.versions.trouble)}", style="bold red")
    return text


def _version_text(node: NodeSnapshot) -> str:
    versions = node.versions
    if versions.applied is None:
        return f"none yet; the newest is {_or_missing(versions.published)}"
    behind = versions.num_behind or 0
    lag = "the newest" if not behind else f"{behind} steps behind the newest"
    if versions.trouble:
        return f"{versions.applied}, {lag}"
    return f"{versions.applied}, {lag}; the learner is at step {versions.learner_step}"


def _done(node: NodeSnapshot) -> str:
    done = node.contribution
    text = f"{done.num_accepted} rollouts accepted, {format_count(done.num_tokens)} tokens"
    if done.num_trained is not None:
        text += f"; {done.num_trained} trained on, in all sessions"
    return text + (f"; {done.num_overtaken} came late" if done.num_overtaken else "")


def _worth(node: NodeSnapshot) -> str:
    done = node.contribution
    active = f"active for {format_seconds(done.active_s)}"
    if not done.usd_per_hour:
        return f"{active}; no --price was set"
    return f"${done.usd:.2f}, {active} at ${done.usd_per_hour:.2f} an hour"


def _engine(node: NodeSnapshot) -> str:
    engine = node.engine
    text = f"{engine.kind} on {printable(engine.device) or '(starting)'}"
    if engine.tokens_per_s is not None:
        text += f", {format_rate(engine.tokens_per_s)} tokens/s"
    if engine.num_deaths:
        text += f"; died {engine.num_deaths} times, last: {printable(engine.last_death)}"
    return text


def _link(node: NodeSnapshot) -> str:
    link = node.link
    caps = (
        f"{format_mbit(link.up_cap_bytes_per_s)} up, {format_mbit(link.down_cap_bytes_per_s)} down"
    )
    return (
        f"up {format_mbit(link.up_bytes_per_s)}, down {format_mbit(link.down_bytes_per_s)} Mbit/s "
        f"now; sent {format_bytes(link.sent_bytes)}, received {format_bytes(link.received_bytes)}; "
        f"caps: {caps}; {link.num_peers} peers"
    )


def _limits(node: NodeSnapshot) -> str:
    owner = node.owner
    used = "" if owner.disk_used_bytes is None else f"disk {format_bytes(owner.disk_used_bytes)}"
    quota = "" if owner.disk_quota_bytes is None else f" of {format_bytes(owner.disk_quota_bytes)}"
    settings = ", ".join(
        f"{name} {value}"
        for name, value in owner.settings.items()
        if value not in {"none", "no", "always"} and name != "disk-gb"
    )
    return "; ".join(part for part in (used + quota, settings) if part) or MISSING


def _or_missing(value: int | None) -> str:
    return MISSING if value is None else str(value)
