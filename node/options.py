"""From what the contributor typed to a :class:`~node.app.NodeConfig`."""

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
from node.owner.hours import parse_hours
from node.owner.settings import OwnerSettings
from node.status_line import StatusLine
from protocols import ticket as ticket_protocol
from protocols.errors import RemoteProtocolError
from protocols.reasons import Reason
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
    num_engines: int = 1,
    usd_per_hour: float,
    owner: OwnerSettings | None = None,
    is_hole_punching: bool = True,
    line: StatusLine | None = None,
) -> NodeConfig:
    """Check everything that was typed, and return it as one value.

    Raises:
        UsageError: the ticket or an option is no good.
        SwarmError: the engine is not installed.
    """
    said, is_expired = read_any_ticket(ticket)
    for address in listen:
        _check_address("--listen", address)
    for address in advertise:
        _check_address("--advertise", address)
    options = parse_options(OPTIONS_OF.get(engine, EngineOptions), engine_options)
    return NodeConfig(
        ticket=said,
        is_ticket_expired=is_expired,
        state_dir=(state_dir or default_state_dir()).expanduser().absolute(),
        name=name or socket.gethostname(),
        listen=tuple(listen),
        advertise=tuple(advertise),
        engines=engine_specs(engine, options, num=num_engines, env=os.environ),
        max_batch=num_engines * options.max_batch,
        usd_per_hour=usd_per_hour,
        owner=owner or OwnerSettings(),
        registry=default_registry(),
        is_hole_punching=is_hole_punching,
        line=line,
    )


def joining_config(
    *,
    ticket: str,
    state_dir: Path | None,
    name: str | None,
    listen: Sequence[str],
    advertise: Sequence[str],
    engine: str,
    engine_options: Sequence[str],
    num_engines: int,
    device: str | None,
    threads: int | None,
    max_batch: int | None,
    usd_per_hour: float,
    upload_mbit: float | None,
    download_mbit: float | None,
    hours: str,
    pause_on_gpu_use: bool,
    gpu_memory_share: float | None,
    power_watts: float | None,
    disk_gb: float | None,
    relay_while_paused: bool,
    is_hole_punching: bool,
    line: StatusLine | None = None,
) -> NodeConfig:
    """Check what was typed for ``join``, whose options these are, and return it as one value.

    Raises:
        UsageError: the ticket or an option is no good.
        SwarmError: the engine is not installed.
    """
    short_forms = {
        "device": device,
        "threads": threads,
        "max_batch": max_batch,
        "gpu_memory_share": gpu_memory_share,
    }
    return make_config(
        ticket,
        state_dir=state_dir,
        name=name,
        listen=listen,
        advertise=advertise,
        engine=engine,
        engine_options=[
            *(f"{key}={value}" for key, value in short_forms.items() if value is not None),
            *engine_options,
        ],
        num_engines=num_engines,
        usd_per_hour=usd_per_hour,
        owner=owner_settings(
            upload_mbit=upload_mbit,
            download_mbit=download_mbit,
            hours=hours,
            pause_on_gpu_use=pause_on_gpu_use,
            power_watts=power_watts,
            disk_gb=disk_gb,
            relay_while_paused=relay_while_paused,
        ),
        is_hole_punching=is_hole_punching,
        line=line,
    )


def owner_settings(
    *,
    upload_mbit: float | None,
    download_mbit: float | None,
    hours: str,
    pause_on_gpu_use: bool,
    power_watts: float | None,
    disk_gb: float | None,
    relay_while_paused: bool,
) -> OwnerSettings:
    """Return the owner's limits as they were typed.

    Raises:
        UsageError: the hours are no hours.
    """
    return OwnerSettings(
        upload_bytes_per_s=bytes_per_s_of(upload_mbit),
        download_bytes_per_s=bytes_per_s_of(download_mbit),
        hours=parse_hours(hours),
        pause_on_gpu_use=pause_on_gpu_use,
        power_watts=power_watts,
        disk_bytes=None if disk_gb is None else int(disk_gb * 1e9),
        relay_while_paused=relay_while_paused,
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
