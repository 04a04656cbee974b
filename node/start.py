"""What a node does on its machine before it joins."""

import time
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from echo2swarm.errors import StoreError
from node.config import NodeConfig
from node.owner.disk import clear_old_runs
from node.owner.gpu import GpuMonitor, GpuUnreadableError
from node.owner.nvml import open_monitor

MAX_LOG_BYTES: Final = 10_000_000
"""The engine's log starts anew when it is longer than this."""

log = structlog.get_logger()


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
    """Return a monitor of the engine's GPU, if there is one."""
    _, _, index = getattr(config.engine.options, "device", "auto").partition(":")
    try:
        return open_monitor(int(index or 0))
    except GpuUnreadableError as exc:
        if config.owner.pause_on_gpu_use or config.owner.power_watts is not None:
            log.warning("gpu.not_watched", error=str(exc), next="working without a look at the GPU")
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
