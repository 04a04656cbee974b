import sys

import pytest

from echo2swarm.errors import UsageError
from node.engine.options import SleepOptions, TransformersOptions, VllmOptions, num_threads
from node.engine.placement import engine_specs
from node.engine.process import engine_spec


def gpus(num: int, *, env: dict[str, str], tensor_parallel: int = 1) -> list[str]:
    vllm = VllmOptions(python=sys.executable, tensor_parallel=tensor_parallel)
    return [
        spec.env["CUDA_VISIBLE_DEVICES"] for spec in engine_specs("vllm", vllm, num=num, env=env)
    ]


def test_one_engine_is_run_as_if_there_were_no_other() -> None:
    options = SleepOptions()
    assert engine_specs("sleep", options, num=1, env={}) == (engine_spec("sleep", options),)


def test_each_engine_has_gpus_of_its_own() -> None:
    assert gpus(3, env={}) == ["0", "1", "2"]
    assert gpus(2, env={}, tensor_parallel=2) == ["0,1", "2,3"]


def test_gpus_are_those_that_the_environment_leaves() -> None:
    assert gpus(2, env={"CUDA_VISIBLE_DEVICES": "3,GPU-5,7"}) == ["3", "GPU-5"]


def test_engines_share_the_threads_that_one_would_have() -> None:
    specs = engine_specs("transformers", TransformersOptions(), num=2, env={})
    threads = {spec.env["OMP_NUM_THREADS"] for spec in specs}
    assert threads == {str(max(1, num_threads(0) // 2))}
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
