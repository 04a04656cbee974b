"""Which GPUs and how many threads each of several engines gets; pure but for the machine's size."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from echo2swarm.system.errors import UsageError
from node.engine.options import EngineOptions, TransformersOptions, VllmOptions, num_engine_threads
from node.engine.process import EngineSpec, engine_spec

MAX_ENGINES: Final = 64
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_NVIDIA_SMI: Final = "PCI_BUS_ID"
"""CUDA's own order is by speed, and not that of nvidia-smi."""


def engine_specs(
    kind: str, options: EngineOptions, *, num: int, env: Mapping[str, str]
) -> tuple[EngineSpec, ...]:
    """Return how to run ``num`` engines side by side.

    Each has GPUs of its own, as many as share one model, in the order of ``nvidia-smi`` or of
    ``CUDA_VISIBLE_DEVICES`` in ``env``; and an equal part of the CPU threads of one, unless
    ``options`` say how many threads.

    Raises:
        UsageError: there is no such engine, or its options name one GPU for all.
        SwarmError: what it needs is not installed.
    """
    if num == 1:
        each = engine_spec(kind, options)
        return (replace(each, env={**each.env, _ORDER: env.get(_ORDER, _NVIDIA_SMI)}),)
    if not 1 <= num <= MAX_ENGINES:
        raise UsageError(f"--engines {num}: expected 1 to {MAX_ENGINES}")
    if isinstance(options, TransformersOptions | VllmOptions):
        if options.device.startswith("cuda:"):
            raise UsageError(
                f"--engines {num} with device {options.device}, which is one GPU: leave the device "
                f"out, and choose GPUs with the environment variable {_VISIBLE}"
            )
        threads = options.threads or max(1, num_engine_threads(0) // num)
        options = msgspec.structs.replace(options, threads=threads)
    each = engine_spec(kind, options)
    num_gpus = getattr(options, "tensor_parallel", 1)
    return tuple(
        replace(
            each,
            number=number + 1,
            env={**each.env, **_gpus(number * num_gpus, num_gpus, env.get(_VISIBLE))},
        )
        for number in range(num)
    )


def gpus_of(options: EngineOptions, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that one engine would use: numbers of ``nvidia-smi``, or names.

    Args:
        options: of the engine.
        env: of its process.
    """
    _, _, index = getattr(options, "device", "auto").partition(":")
    num = getattr(options, "tensor_parallel", 1)
    return tuple(_visible(int(index or 0), num, env.get(_VISIBLE)))


def all_gpus(specs: Iterable[EngineSpec], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that several engines use, each once; ``env`` is the node's own."""
    found = [gpu for spec in specs for gpu in gpus_of(spec.options, {**env, **spec.env})]
    return tuple(dict.fromkeys(found))


def _gpus(first: int, num: int, visible: str | None) -> dict[str, str]:
    return {_VISIBLE: ",".join(_visible(first, num, visible)), _ORDER: _NVIDIA_SMI}


def _visible(first: int, num: int, visible: str | None) -> Sequence[str]:
    if visible is None:
        return [str(index) for index in range(first, first + num)]
    return [name.strip() for name in visible.split(",") if name.strip()][first : first + num]
