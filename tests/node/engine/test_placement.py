import sys
from dataclasses import replace

import pytest

from echo2swarm.system.errors import UsageError
from node.engine.options import SleepOptions, TransformersOptions, VllmOptions, num_engine_threads
from node.engine.placement import all_gpus, engine_specs, gpus_of
from node.engine.process import engine_spec


def gpus(num: int, *, env: dict[str, str], tensor_parallel: int = 1) -> list[str]:
    vllm = VllmOptions(python=sys.executable, tensor_parallel=tensor_parallel)
    return [
        spec.env["CUDA_VISIBLE_DEVICES"] for spec in engine_specs("vllm", vllm, num=num, env=env)
    ]


def test_one_engine_is_left_all_gpus_but_counts_them_as_nvidia_smi_does() -> None:
    options = SleepOptions()
    (spec,) = engine_specs("sleep", options, num=1, env={})
    (own,) = engine_specs("sleep", options, num=1, env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})

    assert spec == replace(engine_spec("sleep", options), env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert own.env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


@pytest.mark.parametrize(
    ("device", "tensor_parallel", "visible", "used"),
    [
        ("auto", 1, None, ("0",)),
        ("cuda:2", 1, None, ("2",)),
        ("auto", 2, None, ("0", "1")),
        ("cuda:1", 1, "4, GPU-7", ("GPU-7",)),
        ("cuda:5", 1, "4,5", ()),
        ("auto", 1, "", ()),
    ],
)
def test_the_gpus_that_are_watched_are_those_that_the_engine_uses(
    device: str, tensor_parallel: int, visible: str | None, used: tuple[str, ...]
) -> None:
    options = VllmOptions(device=device, tensor_parallel=tensor_parallel)
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus_of(options, env) == used


def test_the_gpus_of_all_engines_are_watched() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "6,7,8"}
    vllm = VllmOptions(python=sys.executable)
    assert all_gpus(engine_specs("vllm", vllm, num=3, env=env), env) == ("6", "7", "8")


def test_each_engine_has_gpus_of_its_own() -> None:
    assert gpus(3, env={}) == ["0", "1", "2"]
    assert gpus(2, env={}, tensor_parallel=2) == ["0,1", "2,3"]


def test_gpus_are_those_that_the_environment_leaves() -> None:
    assert gpus(2, env={"CUDA_VISIBLE_DEVICES": "3,GPU-5,7"}) == ["3", "GPU-5"]


def test_engines_share_the_threads_that_one_would_have() -> None:
    specs = engine_specs("transformers", TransformersOptions(), num=2, env={})
    threads = {spec.env["OMP_NUM_THREADS"] for spec in specs}
    assert threads == {str(max(1, num_engine_threads(0) // 2))}
    specs = engine_specs("transformers", TransformersOptions(threads=3), num=2, env={})
    assert {spec.env["OMP_NUM_THREADS"] for spec in specs} == {"3"}


def test_engines_have_numbers_and_are_called_by_them() -> None:
    specs = engine_specs("sleep", SleepOptions(), num=2, env={})
    assert [spec.title for spec in specs] == ["engine sleep 1", "engine sleep 2"]
    assert engine_spec("sleep", SleepOptions()).title == "engine sleep"


def test_one_gpu_for_several_engines_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"one GPU.*CUDA_VISIBLE_DEVICES"):
        engine_specs("transformers", TransformersOptions(device="cuda:1"), num=2, env={})


@pytest.mark.parametrize("num", [0, 65])
def test_a_number_of_engines_that_nobody_has_is_refused(num: int) -> None:
    with pytest.raises(UsageError, match="--engines"):
        engine_specs("sleep", SleepOptions(), num=num, env={})


def test_a_gpu_that_two_engines_share_is_watched_once() -> None:
    assert all_gpus([engine_spec("sleep", SleepOptions())] * 2, {}) == ("0",)
