"""What a node does on its machine before it joins."""

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from echo2swarm.network.base import Network
from echo2swarm.status.client import StatusClient
from echo2swarm.system.errors import NetworkError, StoreError, SwarmError, UsageError
from node.config import NodeConfig
from node.doctor.findings import Severity
from node.doctor.machine import quick_findings
from node.doctor.question import DoctorRequest
from node.engine.placement import all_gpus
from node.owner.disk import clear_old_runs
from node.owner.gpu import GpuMonitor, GpuUnreadableError
from node.owner.nvml import open_monitor
from protocols.errors import RemoteProtocolError
from protocols.ticket import Ticket

EXPIRY_S: Final = 20.0
"""For the learner to say whether a ticket has expired."""
MAX_LOG_BYTES: Final = 10_000_000
"""The engine's log starts anew when it is longer than this."""

log = structlog.get_logger()


def check_machine(config: NodeConfig) -> None:
    """Look at this machine before anything is begun; takes well under a second.

    Raises:
        SwarmError: something would certainly fail; the message says what, and what to do.
    """
    question = DoctorRequest(
        ticket=config.ticket,
        state_dir=config.state_dir,
        engine_kind=config.engines[0].kind,
        options=config.engines[0].options,
        disk_bytes=config.owner.disk_bytes,
        is_quick=True,
    )
    for finding in quick_findings(question):
        match finding.verdict:
            case Severity.FAIL:
                raise SwarmError(f"{finding.name}: {finding.text}; {finding.remedy}")
            case Severity.WARN:
                log.warning(
                    "machine.warning",
                    about=finding.name,
                    what=finding.text,
                    remedy=finding.remedy,
                )
            case Severity.PASS:
                log.debug("machine.checked", about=finding.name, what=finding.text)


async def check_expiry(network: Network, ticket: Ticket, *, unix_now_s: float) -> None:
    """Ask the learner whether a ticket that has expired by our clock really has.

    Raises:
        UsageError: it has, or nobody is there to say.
    """
    ago_h = (unix_now_s - ticket.expires_unix_s) / 3600
    text = f"ticket for run {ticket.run_id!r} expired {ago_h:.1f} h ago"
    try:
        status = await StatusClient(network, ticket).ask(timeout_s=EXPIRY_S)
    except (NetworkError, RemoteProtocolError) as exc:
        raise UsageError(
            f"{text} (or this machine's clock is ahead, and the learner can't be asked: {exc}); "
            "ask the run owner for a new one"
        ) from exc
    if status.at_unix_s >= ticket.expires_unix_s:
        raise UsageError(
            f"{text}, as the learner's clock says too; ask the run owner for a new one"
        )
    log.warning(
        "clock.wrong",
        ahead_s=round(unix_now_s - status.at_unix_s),
        next="joining all the same; set the clock: timedatectl set-ntp true",
    )


def make_room(config: NodeConfig) -> None:
    """Delete weights of other runs that nobody needs."""
    try:
        clear_old_runs(
            config.state_dir / "runs",
            current=config.ticket.run_id,
            now_unix_s=time.time(),
            has_quota=config.owner.disk_bytes is not None,
        )
    except OSError as exc:
        raise StoreError(
            f"can't use {config.state_dir}: {exc.strerror or exc}; name another folder "
            "with --state-dir"
        ) from exc


def monitor_of(config: NodeConfig) -> GpuMonitor | None:
    """Return a monitor of the engines' GPUs, if there are any."""
    try:
        return open_monitor(all_gpus(config.engines, os.environ))
    except GpuUnreadableError as exc:
        if config.owner.pause_on_gpu_use or config.owner.power_watts is not None:
            log.warning(
                "gpu.not_watched",
                error=str(exc),
                next="working without: no pause for its other users, no power cap",
            )
        return None


def local_at(unix_s: float) -> datetime:
    """Return what the owner's clock shows at a Unix time."""
    return datetime.fromtimestamp(unix_s)


def engine_log(folder: Path) -> Path:
    """Return where the engine's output goes."""
    path = folder / "engine.log"
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.unlink()
    return path
