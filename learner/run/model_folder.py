"""Finds the model that ``model.path`` names and tries it out, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import structlog
import trio

from echo2swarm.models.cache import torch_env
from echo2swarm.system.errors import ConfigError, StoreError

_PREPARE: Final = "echo2swarm.models.prepare"
_CHECK: Final = "echo2swarm.models.check"
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
    result = await _run(_PREPARE, path)
    for line in _lines(result):
        log.info("model.prepared", note=line)
    return Path(result.stdout.decode().strip())


async def find_run_model(path: str) -> Path | None:
    """Return the folder of the model if it is on this machine; nothing is fetched.

    Raises:
        ConfigError: it is, and is no model.
    """
    found = (await _run(_PREPARE, "--no-fetch", path)).stdout.decode().strip()
    return Path(found) if found else None


async def check_loads(folder: Path) -> None:
    """Load a model as the trainer will, and see that its weights are all there and are numbers.

    Raises:
        ConfigError: they aren't.
        StoreError: the process that loads it died.
    """
    await _run(_CHECK, str(folder))


async def _run(module: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    result = await trio.run_process(
        [sys.executable, "-m", module, *arguments],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        deliver_cancel=_kill,
        env=_environment(),
    )
    if result.returncode != 0:
        lines = _lines(result)
        error = lines[-1].removeprefix(_ERROR_PREFIX) if lines else "no message"
        if result.returncode < 0:
            error = f"the process that loads it was killed by signal {-result.returncode}"
        kind = ConfigError if result.returncode == _USAGE_STATUS else StoreError
        raise kind(f"model.path {arguments[-1]!r}: {error}")
    return result


def _environment() -> dict[str, str]:
    return {**os.environ, **torch_env(), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}


def _lines(result: "subprocess.CompletedProcess[bytes]") -> list[str]:
    return result.stderr.decode(errors="replace").strip().splitlines()


async def _kill(process: trio.Process) -> None:
    process.kill()
    await process.wait()
