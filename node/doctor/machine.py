"""Probes of this machine: software, disk, memory, GPU. Each is quick, and changes nothing."""

import os
import platform
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from node.doctor.findings import (
    Finding,
    Package,
    judge_device,
    judge_disk,
    judge_gpu,
    judge_packages,
    judge_state_dir,
)
from node.doctor.question import DoctorRequest
from node.engine.options import EngineOptions
from node.engine.placement import gpus_of
from node.owner.gpu import GpuReading, GpuUnreadableError
from node.owner.nvml import open_monitor

_EXTRA_OF: Final = {"transformers": "transformers"}
"""vLLM may be in an environment of its own, and says itself what it lacks."""

_GPU_DRIVERS: Final = ("dev/nvidiactl", "dev/nvhost-gpu", "dev/dxg", "dev/kfd")
"""NVIDIA's, on a Jetson, under Windows, and AMD's."""


def examine_software(engine_kind: str) -> Finding:
    """Compare what is installed with what this version asks for."""
    extra = _EXTRA_OF.get(engine_kind, "")
    wanted = metadata.requires("echo2swarm") or []
    packages = [p for text in wanted if (p := _package(text, extra)) is not None]
    return judge_packages(platform.python_version(), packages, extra=extra)


def examine_state_dir(state_dir: Path) -> Finding:
    """Try whether the state directory, or where it is to be made, can be written."""
    folder = _existing(state_dir)
    if not folder.is_dir():
        return judge_state_dir(f"{folder} is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        return judge_state_dir(f"{folder} can't be written by this user")
    return judge_state_dir("")


def free_disk_bytes(state_dir: Path) -> int:
    """Return how much space there is where the state directory is, or will be."""
    return shutil.disk_usage(_existing(state_dir)).free


def available_memory_bytes() -> int | None:
    """Return how much memory a new process can have, as Linux tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] * 1024 if found else None


def read_gpu(options: EngineOptions) -> tuple[GpuReading | None, str]:
    """Return the GPUs that the engine would use; else None, and why."""
    try:
        return open_monitor(gpus_of(options, os.environ)).read(), ""
    except GpuUnreadableError as exc:
        return None, str(exc)


def examine_gpu(reading: GpuReading | None, why: str, *, model_bytes: int | None) -> Finding:
    """Judge the GPU as it was read."""
    if reading is None:
        return judge_gpu(None, driver=why, total_bytes=0, free_bytes=0, model_bytes=model_bytes)
    return judge_gpu(
        reading.name,
        driver=reading.driver,
        total_bytes=reading.total_bytes,
        free_bytes=reading.total_bytes - reading.used_bytes,
        model_bytes=model_bytes,
    )


def gpu_drivers(root: Path = Path("/")) -> list[str]:
    """Return the files by which GPU drivers show themselves on this machine."""
    return [f"/{name}" for name in _GPU_DRIVERS if (root / name).exists()]


def quick_findings(question: DoctorRequest) -> list[Finding]:
    """Return what can be told at once, without the network; what fails would certainly fail."""
    return [
        examine_software(question.engine_kind),
        judge_device(getattr(question.options, "device", "auto"), gpu_drivers()),
        examine_state_dir(question.state_dir),
        judge_disk(free_disk_bytes(question.state_dir), needed_bytes=None, quota_bytes=None),
    ]


def _package(
    text: str, extra: str, *, version_of: Callable[[str], str] = metadata.version
) -> Package | None:
    """Return a requirement and what is there; None if it is none of what is needed."""
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return None
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
        return None
    if wanted.name == "echo2swarm":
        return None
    try:
        found = version_of(wanted.name)
    except metadata.PackageNotFoundError:
        found = None
    try:
        is_right = found is not None and wanted.specifier.contains(found, prereleases=True)
    except InvalidVersion:
        is_right = False
    return Package(name=wanted.name, wanted=str(wanted.specifier), found=found, is_right=is_right)


def _existing(path: Path) -> Path:
    """Return the nearest folder above that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
