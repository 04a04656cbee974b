"""From what the contributor typed to a :class:`~node.app.NodeConfig`."""

import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from echo2swarm.broadcast.upload import bytes_per_s_of
from echo2swarm.errors import UsageError
from node.app import NodeConfig
from node.engine.options import OPTIONS_OF, Options, parse_options
from node.engine.process import engine_spec
from protocols import ticket as ticket_protocol
from protocols.errors import RemoteProtocolError
from protocols.ticket import Ticket


def make_config(
    ticket: str,
    *,
    state_dir: Path | None,
    name: str | None,
    listen: Sequence[str],
    advertise: Sequence[str],
    engine: str,
    engine_options: Sequence[str],
    usd_per_hour: float,
    upload_mbit: float | None = None,
    is_hole_punching: bool = True,
) -> NodeConfig:
    """Check everything that was typed, and return it as one value.

    Raises:
        UsageError: the ticket or an option is no good.
        SwarmError: the engine is not installed.
    """
    said = read_ticket(ticket)
    options = parse_options(OPTIONS_OF.get(engine, Options), engine_options)
    return NodeConfig(
        ticket=said,
        state_dir=(state_dir or default_state_dir()).expanduser().absolute(),
        name=name or socket.gethostname(),
        listen=tuple(listen),
        advertise=tuple(advertise),
        engine=engine_spec(engine, options),
        max_batch=options.max_batch,
        usd_per_hour=usd_per_hour,
        upload_bytes_per_s=bytes_per_s_of(upload_mbit),
        is_hole_punching=is_hole_punching,
    )


def read_ticket(text: str) -> Ticket:
    """Return the ticket in ``text``; ``-`` reads it from standard input.

    Raises:
        UsageError: it is no ticket, cut short, or expired.
    """
    line = sys.stdin.readline() if text == "-" else text
    try:
        return ticket_protocol.read(line, now_unix_s=time.time())
    except RemoteProtocolError as exc:
        raise UsageError(str(exc)) from exc


def default_state_dir() -> Path:
    """Return where a node keeps its state if nothing was said."""
    return Path(platformdirs.user_state_dir("echo2swarm")) / "node"
