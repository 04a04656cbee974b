"""What this machine has, as far as the trainer cares."""

import os
from pathlib import Path

import torch

from echo2swarm.system.errors import ConfigError


def device_of(name: str) -> torch.device:
    """Return the device that ``trainer.device`` names.

    Raises:
        ConfigError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as exc:
        reason = str(exc).strip().splitlines()[0][:200]
        num_gpus = torch.cuda.device_count()
        raise ConfigError(
            f'trainer.device = "{name}": {reason} (torch {torch.__version__} can use {num_gpus} '
            'GPUs here); "auto" takes what there is'
        ) from exc
    return device


def autocast_dtype(compute_dtype: str, device: torch.device) -> torch.dtype | None:
    """Return the type to compute in where it is not float32.

    "auto" means bfloat16 where the hardware multiplies it faster than float32: elsewhere it is
    emulated, and slower.
    """
    if compute_dtype != "auto":
        return torch.bfloat16 if compute_dtype == "bfloat16" else None
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else None
    return torch.bfloat16 if cpu_has_bfloat16() else None


def cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the CPU multiplies bfloat16 in hardware."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    flags = {
        flag for line in text.splitlines() if line.startswith("flags") for flag in line.split()
    }
    return bool(flags & {"avx512_bf16", "amx_bf16"})


def resident_bytes() -> int:
    """Return how much memory this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
