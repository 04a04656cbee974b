"""From what the contributor typed to a :class:`~node.config.NodeConfig`."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from echo2swarm.network.own_addresses import check_advertised, check_listen
from echo2swarm.system.errors import UsageError
from echo2swarm.text.ticket import read_ticket, typed_ticket
from echo2swarm.weights.transfer.rate_limit import bytes_per_s_of
from node.config import NodeConfig
from node.control.paths import default_registry, default_state_dir
from node.doctor.question import DoctorRequest
from node.engine.options import OPTIONS_OF, EngineOptions, parse_options
from node.engine.placement import engine_specs
from node.join_options import JoinOptions
from node.owner.hours import parse_hours
from node.owner.settings import OwnerSettings
from protocols import ticket as ticket_protocol
from protocols.errors import RemoteProtocolError
from protocols.reasons import Reason
from protocols.ticket import Ticket


def join_config(options: JoinOptions) -> NodeConfig:
    """Check everything that was typed for ``join``, and return it as one value.

    Raises:
        UsageError: the ticket or an option is no good.
        SwarmError: the engine is not installed.
    """
    ticket, is_expired = read_any_ticket(options.ticket)
    for address in options.listen:
        _check_address("--listen", address)
    for address in options.advertise:
        _check_address("--advertise", address)
    engine_options = _engine_options(options)
    return NodeConfig(
        ticket=ticket,
        is_ticket_expired=is_expired,
        state_dir=(options.state_dir or default_state_dir()).expanduser().absolute(),
        name=options.name or socket.gethostname(),
        listen=options.listen,
        advertise=options.advertise,
        engines=engine_specs(
            options.engine, engine_options, num=options.num_engines, env=os.environ
        ),
        max_batch=options.num_engines * engine_options.max_batch,
        usd_per_hour=options.usd_per_hour,
        owner=_owner_settings(options),
        registry=default_registry(),
        is_hole_punching=options.is_hole_punching,
    )


def _engine_options(options: JoinOptions) -> EngineOptions:
    """Return the options of the engine: those with a flag of their own, then NAME=VALUE."""
    flags = {
        "device": options.device,
        "threads": options.threads,
        "max_batch": options.max_batch,
        "gpu_memory_share": options.gpu_memory_share,
    }
    texts = [f"{name}={value}" for name, value in flags.items() if value is not None]
    kind = OPTIONS_OF.get(options.engine, EngineOptions)
    return parse_options(kind, [*texts, *options.engine_options])


def _owner_settings(options: JoinOptions) -> OwnerSettings:
    """Return the owner's limits.

    Raises:
        UsageError: the hours are no hours.
    """
    return OwnerSettings(
        upload_bytes_per_s=bytes_per_s_of(options.upload_mbit),
        download_bytes_per_s=bytes_per_s_of(options.download_mbit),
        hours=parse_hours(options.hours),
        pause_on_gpu_use=options.pause_on_gpu_use,
        power_watts=options.power_watts,
        disk_bytes=None if options.disk_gb is None else int(options.disk_gb * 1e9),
        relay_while_paused=options.relay_while_paused,
    )


def _read(line: str) -> Ticket:
    try:
        return ticket_protocol.parse_ticket(line, now_unix_s=time.time())
    except RemoteProtocolError as exc:
        raise UsageError(str(exc)) from exc


def read_any_ticket(text: str) -> tuple[Ticket, bool]:
    """Return the ticket in ``text``, and whether it has expired by this machine's clock.

    Whether it really has, the learner knows: a clock that is ahead is no reason to stay out.

    Raises:
        UsageError: it is no ticket, or cut short.
    """
    line = typed_ticket(text, command="echo2-node join")
    try:
        return ticket_protocol.parse_ticket(line, now_unix_s=time.time()), False
    except RemoteProtocolError as exc:
        if exc.reason is not Reason.EXPIRED:
            raise UsageError(str(exc)) from exc
        return ticket_protocol.parse_ticket(line, now_unix_s=0.0), True


def _check_address(option: str, address: str) -> None:
    try:
        if option == "--listen":
            check_listen(address)
        else:
            check_advertised(address, by_node=True)
    except UsageError as exc:
        raise UsageError(f"{option} {address!r}: {exc}") from None


def ticket_line(text: str) -> str:
    """Return the ticket in ``text``, or on standard input, as one line, checked.

    Raises:
        UsageError: it is no ticket, cut short, or expired.
    """
    line = typed_ticket(text, command="echo2-node service install")
    _read(line)
    return line


def make_question(
    ticket: str | None,
    *,
    state_dir: Path | None,
    engine: str,
    engine_options: Sequence[str],
    disk_gb: float | None,
    is_quick: bool,
) -> DoctorRequest:
    """Check what was typed for ``doctor``.

    Raises:
        UsageError: the ticket or an option is no good.
    """
    return DoctorRequest(
        ticket=None if ticket is None else read_ticket(ticket, command="echo2-node doctor"),
        state_dir=(state_dir or default_state_dir()).expanduser().absolute(),
        engine_kind=engine,
        options=parse_options(OPTIONS_OF.get(engine, EngineOptions), engine_options),
        disk_bytes=None if disk_gb is None else int(disk_gb * 1e9),
        is_quick=is_quick,
    )
