"""NVIDIA GPUs, through NVML: the only module that knows it.

``nvidia-ml-py`` and the driver are optional: where one is missing, there is no monitor.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Final

from echo2swarm.system.extras import install_extra
from node.owner.gpu import (
    GpuMonitor,
    GpuReading,
    GpuUnreadableError,
    GpuUse,
    SeveralGpus,
    name_of,
)

_MILLI: Final = 1000.0


def open_monitor(gpus: Sequence[str] = ("0",)) -> GpuMonitor:
    """Return a monitor of some GPUs.

    Args:
        gpus: at least one: its number, as ``nvidia-smi`` counts, or its UUID.

    Raises:
        GpuUnreadableError: there is no NVIDIA driver, no such GPU, or nvidia-ml-py is missing;
            the message says which.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise GpuUnreadableError(f"nvidia-ml-py is not installed; {install_extra('gpu')}") from None
    monitors: list[GpuMonitor] = []
    for gpu in gpus:
        try:
            nvml.nvmlInit()
            monitors.append(NvmlMonitor(nvml, _handle(nvml, gpu)))
        except nvml.NVMLError as exc:
            raise GpuUnreadableError(f"no NVIDIA GPU {gpu} can be read: {exc}") from None
    if not monitors:
        raise GpuUnreadableError("no GPU is left for it: see CUDA_VISIBLE_DEVICES")
    return monitors[0] if len(monitors) == 1 else SeveralGpus(monitors)


def _handle(nvml: Any, gpu: str) -> Any:  # noqa: ANN401 - an untyped library
    if gpu.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(gpu))
    return nvml.nvmlDeviceGetHandleByUUID(gpu)


class NvmlMonitor:
    """Implements :class:`node.owner.gpu.GpuMonitor`."""

    def __init__(self, nvml: Any, handle: Any) -> None:  # noqa: ANN401 - an untyped library
        self._nvml = nvml
        self._handle = handle
        self._seen_us = 0

    def read(self) -> GpuReading:
        """Return how it is.

        Raises:
            GpuUnreadableError: it can't be told now.
        """
        nvml, handle = self._nvml, self._handle
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            reading = GpuReading(
                name=_text(nvml.nvmlDeviceGetName(handle)),
                driver=_text(nvml.nvmlSystemGetDriverVersion()),
                total_bytes=int(memory.total),
                used_bytes=int(memory.used),
                uses=self._uses(),
                power_w=self._watts(nvml.nvmlDeviceGetPowerUsage),
                power_cap_w=self._watts(nvml.nvmlDeviceGetEnforcedPowerLimit),
            )
        except nvml.NVMLError as exc:
            raise GpuUnreadableError(f"the GPU can't be read: {exc}") from None
        return reading

    def cap_power(self, watts: float) -> float:
        """Ask for a power cap, and return what was set.

        Raises:
            GpuUnreadableError: the driver refuses: out of range, or not without root.
        """
        nvml = self._nvml
        try:
            low, high = nvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
            if not low <= watts * _MILLI <= high:
                raise GpuUnreadableError(
                    f"a power cap of {watts:g} W is out of range: "
                    f"{low / _MILLI:g} to {high / _MILLI:g} W"
                )
            nvml.nvmlDeviceSetPowerManagementLimit(self._handle, round(watts * _MILLI))
        except nvml.NVMLError as exc:
            raise GpuUnreadableError(
                f"the driver sets no power cap ({exc}); as root: nvidia-smi -pl {watts:g}"
            ) from None
        return watts

    def _uses(self) -> tuple[GpuUse, ...]:
        nvml, handle = self._nvml, self._handle
        held: dict[int, int] = {}
        for ask in (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in ask(handle):
                # The driver does not tell it on some systems.
                held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory or 0)
        shares = self._time_shares()
        return tuple(
            GpuUse(pid=pid, name=name_of(pid), memory_bytes=num, time_share=shares.get(pid))
            for pid, num in sorted(held.items())
        )

    def _time_shares(self) -> dict[int, float]:
        """Return the newest sample of each process since the last call."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us)
        except self._nvml.NVMLError:
            return {}  # not supported, or nothing new
        shares: dict[int, float] = {}
        for sample in sorted(samples, key=lambda each: each.timeStamp):
            self._seen_us = max(self._seen_us, int(sample.timeStamp))
            shares[int(sample.pid)] = sample.smUtil / 100
        return shares

    def _watts(self, ask: Any) -> float | None:  # noqa: ANN401 - an untyped library
        try:
            return float(ask(self._handle)) / _MILLI
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
