"""Finds the model that ``model.path`` names, in a process that may load model libraries."""

import sys
from pathlib import Path
from typing import Final

import structlog
import trio

from echo2swarm.errors import ConfigError, StoreError

_MODULE: Final = "echo2swarm.models.prepare"
_ERROR_PREFIX: Final = "error: "
_USAGE_STATUS: Final = 2

log = structlog.get_logger()


async def prepare_model(path: str) -> Path:
    """Return the folder of the model, fetched or converted if need be.

    Raises:
        ConfigError: ``path`` names no model.
        StoreError: it can't be fetched or converted.
    """
    log.info("model.preparing", path=path)
    result = await trio.run_process(
        [sys.executable, "-m", _MODULE, path],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        deliver_cancel=_kill,
    )
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    if result.returncode != 0:
        error = lines[-1].removeprefix(_ERROR_PREFIX) if lines else "no message"
        kind = ConfigError if result.returncode == _USAGE_STATUS else StoreError
        raise kind(f"model.path {path!r}: {error}")
    for line in lines:
        log.info("model.prepared", note=line)
    return Path(result.stdout.decode().strip())


async def _kill(process: trio.Process) -> None:
    process.kill()
    await process.wait()
