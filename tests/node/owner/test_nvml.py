"""The NVIDIA adapter against a library that answers as NVML does; and without any."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from node.owner.gpu import GpuReading, GpuUnreadableError, SeveralGpus
from node.owner.nvml import open_monitor


class FakeNvmlError(Exception):
    pass


def fake_nvml(**changes: object) -> ModuleType:
    module = ModuleType("pynvml")

    def not_supported(*_: object) -> None:
        raise FakeNvmlError("Not Supported")

    answers: dict[str, Any] = {
        "NVMLError": FakeNvmlError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=2**34, used=2**31),
        "nvmlDeviceGetName": lambda _: b"NVIDIA Fake",
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [
            SimpleNamespace(pid=1, usedGpuMemory=2**30),
            SimpleNamespace(pid=4_000_001, usedGpuMemory=None),
        ],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda _: [
            SimpleNamespace(pid=1, usedGpuMemory=2**20)
        ],
        "nvmlDeviceGetProcessUtilization": lambda *_: [
            SimpleNamespace(pid=1, smUtil=10, timeStamp=1),
            SimpleNamespace(pid=1, smUtil=60, timeStamp=2),
        ],
        "nvmlDeviceGetPowerUsage": not_supported,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 250_000,
        "nvmlDeviceGetPowerManagementLimitConstraints": lambda _: (100_000, 300_000),
        "nvmlDeviceSetPowerManagementLimit": lambda *_: None,
        **changes,
    }
    for name, answer in answers.items():
        setattr(module, name, answer)
    return module


def test_it_reads_who_uses_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())

    reading = open_monitor().read()

    assert (reading.name, reading.driver) == ("NVIDIA Fake", "580.1")
    assert (reading.total_bytes, reading.used_bytes) == (2**34, 2**31)
    assert (reading.power_w, reading.power_cap_w) == (None, 250.0)
    assert [(u.pid, u.memory_bytes, u.time_share) for u in reading.uses] == [
        (1, 2**30, 0.6),
        (4_000_001, 0, None),
    ]
    assert reading.uses[1].name == "process 4000001"


def test_a_power_cap_out_of_range_or_without_root_is_refused_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_permission(*_: object) -> None:
        raise FakeNvmlError("Insufficient Permissions")

    monkeypatch.setitem(
        sys.modules, "pynvml", fake_nvml(nvmlDeviceSetPowerManagementLimit=no_permission)
    )
    monitor = open_monitor()

    with pytest.raises(GpuUnreadableError, match="100 to 300 W"):
        monitor.cap_power(50)
    with pytest.raises(GpuUnreadableError, match="nvidia-smi -pl 200"):
        monitor.cap_power(200)


def test_a_power_cap_in_range_is_set_in_milliwatts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setitem(
        sys.modules,
        "pynvml",
        fake_nvml(nvmlDeviceSetPowerManagementLimit=lambda *said: asked.append(said)),
    )

    assert open_monitor(["1"]).cap_power(200) == 200
    assert asked == [(1, 200_000)]


def test_a_machine_without_the_library_or_the_driver_is_told_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(GpuUnreadableError, match='install the extra "gpu": '):
        open_monitor()

    def no_library() -> None:
        raise FakeNvmlError("NVML Shared Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=no_library))
    with pytest.raises(GpuUnreadableError, match="no NVIDIA GPU 0"):
        open_monitor()


def test_a_gpu_that_goes_away_is_unreadable_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: object) -> None:
        raise FakeNvmlError("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetMemoryInfo=lost))

    with pytest.raises(GpuUnreadableError, match="GPU is lost"):
        open_monitor().read()


def test_several_gpus_are_read_as_one_and_each_process_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    monkeypatch.setitem(
        sys.modules,
        "pynvml",
        fake_nvml(
            nvmlDeviceGetHandleByUUID=lambda name: f"handle of {name}",
            nvmlDeviceSetPowerManagementLimit=lambda handle, _: asked.append(handle),
            nvmlDeviceGetProcessUtilization=lambda handle, _: [
                SimpleNamespace(pid=1, smUtil=60 if handle == 0 else 90, timeStamp=1)
            ],
        ),
    )
    monitor = open_monitor(["0", "GPU-5"])
    reading = monitor.read()
    capped_w = monitor.cap_power(200)

    assert reading.name == "2 x NVIDIA Fake"
    assert (reading.total_bytes, reading.used_bytes) == (2**35, 2**32)
    assert (reading.power_w, reading.power_cap_w) == (None, 500.0)
    assert [(u.pid, u.memory_bytes, u.time_share) for u in reading.uses] == [
        (1, 2**31, 0.9),
        (4_000_001, 0, None),
    ]
    assert capped_w == 200
    assert asked == [0, "handle of GPU-5"]


def test_a_machine_whose_gpus_are_all_hidden_has_none_to_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())

    with pytest.raises(GpuUnreadableError, match="CUDA_VISIBLE_DEVICES"):
        open_monitor([])


def test_of_several_power_caps_the_lowest_is_told() -> None:
    class Capped:
        def __init__(self, at_most: float) -> None:
            self._at_most = at_most

        def read(self) -> GpuReading:
            raise NotImplementedError

        def cap_power(self, watts: float) -> float:
            return min(watts, self._at_most)

    assert SeveralGpus([Capped(250.0), Capped(180.0)]).cap_power(200.0) == 180.0
