"""The owner's commands: find the node, ask it, show what it says."""

import io
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from echo2swarm.system.errors import SwarmError, UsageError
from node.control.client import NoNodeError, open_control
from node.control.messages import CommandDone, NodeSnapshot, Request
from node.control.paths import default_registry, default_state_dir
from node.control.registry import forget, registered_in
from node.control.view import node_view

NONE_RUNS: Final = "no node runs on this machine (start one with `echo2-node join TICKET`)"
_PIPE_COLUMNS: Final = 100


def show_nodes(state_dir: Path | None, *, as_json: bool, watch: bool, interval_s: float) -> bool:
    """Show the nodes of this machine, once or until interrupted; return whether there is any.

    Raises:
        SwarmError: one that was asked for by name does not answer.
    """
    return trio.run(_show, _absolute(state_dir), as_json, watch, interval_s)


def order(state_dir: Path | None, request: Request) -> str:
    """Tell a node to do something, and return what it says.

    Raises:
        UsageError: several nodes run, and none was named.
        SwarmError: no node runs, or it refuses.
    """
    return trio.run(_order, _absolute(state_dir), request)


def _absolute(state_dir: Path | None) -> Path | None:
    return None if state_dir is None else state_dir.expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Found:
    """The nodes of this machine."""

    nodes: list[NodeSnapshot]
    silent: dict[Path, str] = field(default_factory=dict)
    """State directories of nodes that run and can't be asked, and why."""


async def look(state_dir: Path | None, registry: Path, default: Path) -> Found:
    """Return what each node is doing: the one named, or all that this user runs.

    Raises:
        SwarmError: the one that was named does not answer.
    """
    if state_dir is not None:
        async with open_control(state_dir) as client:
            return Found([await client.status()])
    nodes: list[NodeSnapshot] = []
    silent: dict[Path, str] = {}
    for folder in _candidates(registry, default):
        try:
            async with open_control(folder) as client:
                nodes.append(await client.status())
        except NoNodeError:
            forget(registry, folder)
        except SwarmError as exc:
            silent[folder] = str(exc)
    return Found(sorted(nodes, key=lambda node: (node.name, node.state_dir)), silent)


def _candidates(registry: Path, default: Path) -> Sequence[Path]:
    return list(dict.fromkeys([default, *registered_in(registry)]))


async def _show(state_dir: Path | None, as_json: bool, watch: bool, interval_s: float) -> bool:
    registry, default = default_registry(), default_state_dir()
    if watch and not as_json and sys.stdout.isatty():
        return await _watch(state_dir, registry, default, interval_s)
    while True:
        found = await look(state_dir, registry, default)
        if found.nodes or not found.silent:
            _print(found.nodes, as_json=as_json)
        for why in found.silent.values():
            sys.stderr.write(f"{why}\n")
        if not watch:
            return bool(found.nodes)
        await trio.sleep(interval_s)


async def _watch(named: Path | None, registry: Path, default: Path, interval_s: float) -> bool:
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                found = await look(named, registry, default)
                views = [node_view(node, width=console.width) for node in found.nodes]
                silent = [Text(why, style="yellow") for why in found.silent.values()]
                live.update(Group(*[*views, *silent] or [Text(NONE_RUNS)]), refresh=True)
            except SwarmError as exc:
                live.update(Text(str(exc), style="yellow"), refresh=True)
            await trio.sleep(interval_s)


def _print(nodes: Sequence[NodeSnapshot], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(nodes).decode() + "\n")
    elif not nodes:
        sys.stdout.write(NONE_RUNS + "\n")
    else:
        is_screen = sys.stdout.isatty()
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdigit() else _PIPE_COLUMNS
        console = Console() if is_screen else Console(width=width, file=io.StringIO())
        with console.capture() as captured:
            for node in nodes:
                console.print(node_view(node, width=console.width, plain=not is_screen))
        lines = captured.get().splitlines()
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    sys.stdout.flush()


async def _order(state_dir: Path | None, request: Request) -> str:
    if state_dir is None:
        found = await look(None, default_registry(), default_state_dir())
        nodes = found.nodes
        if not nodes:
            raise NoNodeError("; ".join(found.silent.values()) or NONE_RUNS)
        if (num := len(nodes) + len(found.silent)) > 1:
            which = [f"{node.name}: --state-dir {shlex.quote(node.state_dir)}" for node in nodes]
            which += [f"--state-dir {shlex.quote(str(folder))}" for folder in found.silent]
            raise UsageError(f"{num} nodes run here, so say which: {'; '.join(which)}")
        state_dir = Path(nodes[0].state_dir)
    async with open_control(state_dir) as client:
        reply = await client.ask(request)
    return reply.what if isinstance(reply, CommandDone) else ""
