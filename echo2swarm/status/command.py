"""``swarm status``: ask, show, and again."""

import io
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from echo2swarm.status.client import read_status
from echo2swarm.status.health import ENDED_PHASES, is_healthy
from echo2swarm.status.view import status_view
from echo2swarm.system.errors import SwarmError, UsageError
from echo2swarm.system.logging import configure_logging
from echo2swarm.text.format import printable
from protocols.errors import RemoteProtocolError
from protocols.status import StatusReply
from protocols.ticket import Ticket

_PIPE_COLUMNS: Final = 160
"""Width of what goes to a file or pipe, where there is no screen to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A status, and how old it was when we got it."""

    status: StatusReply
    age_s: float

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.status.phase in ENDED_PHASES

    @property
    def is_well(self) -> bool:
        """Whether the run goes on, or has ended well."""
        return is_healthy(self.status, age_s=self.age_s)


Look = Callable[[], Awaitable[Sighting]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """What the user asked for."""

    ticket: Ticket | None
    run_dir: Path | None
    as_json: bool
    watch: bool
    interval_s: float
    timeout_s: float


def show_status(options: StatusOptions) -> bool:
    """Show the state of a run, once or until it ends; return whether the run is well."""
    configure_logging()
    return trio.run(_show, options)


async def _show(options: StatusOptions) -> bool:
    async with _source(options) as look:
        if options.watch and not options.as_json and sys.stdout.isatty():
            return await _watch(look, interval_s=options.interval_s)
        while True:
            seen = await look()
            _print(seen, as_json=options.as_json)
            if seen.has_ended or not options.watch:
                return seen.is_well
            await trio.sleep(options.interval_s)


@asynccontextmanager
async def _source(options: StatusOptions) -> AsyncIterator[Look]:
    """Yield what answers: the learner, or the file it writes."""
    if options.ticket is not None:
        # Here, since libp2p takes a second to load, and a file needs none of it.
        from echo2swarm.status.connect import open_client  # noqa: PLC0415

        async with open_client(options.ticket) as client:

            async def ask() -> Sighting:
                # Its clock may differ from ours; the answer is as young as it can be.
                return Sighting(status=await client.ask(timeout_s=options.timeout_s), age_s=0.0)

            yield ask
        return
    run_dir = options.run_dir
    if run_dir is None:
        raise UsageError(
            "give a ticket (as the argument, in ECHO2_TICKET, or - for standard input), "
            "or a run directory with --run"
        )

    async def read() -> Sighting:
        status = read_status(run_dir)
        return Sighting(status=status, age_s=max(0.0, time.time() - status.at_unix_s))

    yield read


async def _watch(look: Look, *, interval_s: float) -> bool:
    """Keep one screen up to date; a learner that does not answer for a while is no end."""
    console = Console()
    seen = await look()
    seen_at_s, trouble = trio.current_time(), ""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            age_s = seen.age_s + trio.current_time() - seen_at_s
            view = status_view(seen.status, width=console.width, age_s=age_s)
            live.update(Group(view, Text(trouble, style="red")) if trouble else view, refresh=True)
            if seen.has_ended:
                return seen.is_well
            await trio.sleep(interval_s)
            try:
                seen, seen_at_s, trouble = await look(), trio.current_time(), ""
            except (SwarmError, RemoteProtocolError) as exc:
                trouble = printable(str(exc), max_chars=1000)


def _print(seen: Sighting, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(seen.status).decode() + "\n")
        sys.stdout.flush()
        return
    if sys.stdout.isatty():
        console = Console()
        console.print(status_view(seen.status, width=console.width, age_s=seen.age_s))
        return
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() else _PIPE_COLUMNS
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(status_view(seen.status, width=width, age_s=seen.age_s, plain=True))
    # Without the blanks that fill a screen's lines: this is for grep and files.
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    sys.stdout.flush()
