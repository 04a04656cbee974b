"""``echo2-learner ticket``: print the ticket again, and say so if it admits nobody any more."""

import shlex
import time
from pathlib import Path

import click

from echo2swarm.system.errors import StoreError, UsageError
from learner.run.run_dir import RunDir
from protocols import ticket as ticket_protocol
from protocols.errors import RemoteProtocolError
from protocols.reasons import Reason


def show_ticket(run_dir: Path) -> None:
    """Print the ticket that a learner left in its run directory.

    Raises:
        UsageError: there is none.
        StoreError: it is damaged.
    """
    line = _read(run_dir)
    renewing = f"echo2-learner serve --resume --run-dir {shlex.quote(str(run_dir))}"
    try:
        ticket_protocol.parse_ticket(line, now_unix_s=time.time())
    except RemoteProtocolError as exc:
        if exc.reason is not Reason.EXPIRED:
            raise StoreError(
                f"{run_dir / RunDir.TICKET}: {exc}; the learner writes a new one when it starts: "
                f"{renewing}"
            ) from exc
        ticket = ticket_protocol.parse_ticket(line, now_unix_s=0.0)
        ago_h = (time.time() - ticket.expires_unix_s) / 3600
        click.echo(
            f"warning: this ticket expired {ago_h:.1f} h ago, and nobody can join with it; the "
            f"learner makes a new one whenever it starts: {renewing}",
            err=True,
        )
    click.echo(line)


def _read(run_dir: Path) -> str:
    path = run_dir / RunDir.TICKET
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; has a learner been started there?") from None
    except UnicodeDecodeError:
        return ""
