"""What can be set of each engine: read by both ends of the child, so free of heavy imports."""

import os
from collections.abc import Iterable
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from echo2swarm.system.devices import DEVICES, is_device
from echo2swarm.system.errors import UsageError

T = TypeVar("T", bound=msgspec.Struct)

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class EngineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of every engine; immutable, and unknown names are an error."""

    max_batch: AtLeastOne = 128
    """Most completions sampled at once."""


class TransformersOptions(EngineOptions, frozen=True):
    """Of the embedded engine."""

    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the computation; ``auto`` takes bfloat16 where the hardware multiplies it fast."""
    threads: Natural = 0
    """CPU threads; 0 takes half of the cores, for a learner or other nodes may need the rest."""
    batch_tokens: AtLeastOne = 65_536
    """Most tokens, prompts included, that one batch may come to hold in its cache; where memory has
    no room for so many, it finds out and samples fewer at once."""
    gpu_memory_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """Of the GPU's memory, for weights and cache."""

    def __post_init__(self) -> None:
        """Refuse a device that there can't be, rather than let the engine die of it."""
        _check_device(self.device)


class VllmOptions(EngineOptions, frozen=True):
    """Of vLLM."""

    max_batch: AtLeastOne = 256
    """Most completions sampled at once; vLLM samples fewer where its cache has no room."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``; vLLM itself is built for one or the other."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the computation; ``auto`` takes that of the weights."""
    threads: Natural = 0
    """CPU threads, where it runs on a CPU; 0 takes half of the cores."""
    tensor_parallel: AtLeastOne = 1
    """GPUs that share one model."""
    gpu_memory_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """Of the GPU's memory, for weights and cache."""
    cache_gb: Positive = 1.0
    """For the cache, where it runs on a CPU."""
    max_tokens: Natural = 0
    """Most tokens of a prompt with its completion; 0 takes what the model can."""
    eager: bool = False
    """Do without compiled graphs: starts sooner, samples slower. On a CPU it always does."""
    python: str = ""
    """The interpreter of the environment that vLLM is installed in, if that is not this one."""

    def __post_init__(self) -> None:
        """Refuse a device that there can't be, rather than let the engine die of it."""
        _check_device(self.device)


class SleepOptions(EngineOptions, frozen=True):
    """Of the engine that waits instead of computing: for benchmarks of the swarm."""

    rollouts_per_s: Positive = 10.0
    """How fast it is; a call takes its number of completions divided by this."""
    spread: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    """Coefficient of variation of how long equal calls take; their mean is as said above."""
    num_tokens: AtLeastOne = 8
    """Length of every completion; the sampling's limit, if that is less."""
    load_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long it takes to apply a version."""
    vocab_size: Natural = 0
    """Tokens are below this; 0 reads it from the model's config."""


OPTIONS_OF: Final[dict[str, type[EngineOptions]]] = {
    "transformers": TransformersOptions,
    "vllm": VllmOptions,
    "sleep": SleepOptions,
}


def _check_device(name: str) -> None:
    if not is_device(name):
        raise ValueError(f"device is {DEVICES}, not {name!r}")


def parse_options(kind: type[T], assignments: Iterable[str]) -> T:
    """Return ``NAME=VALUE`` texts as options of an engine.

    Raises:
        UsageError: naming what is unknown or out of range, and what there is.
    """
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise UsageError(f"engine option {assignment!r} is not of the form NAME=VALUE")
        values[name] = value
    known = kind.__struct_fields__
    unknown = sorted(values.keys() - set(known))
    if unknown:
        raise UsageError(f"no engine option {unknown[0]!r}; there are: {', '.join(known)}")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as exc:
        what, _, where = str(exc).partition(" - at `$.")
        name = f" {where.rstrip('`')}" if where else ""
        raise UsageError(f"engine option{name}: {what}") from None


def to_argument(options: EngineOptions) -> str:
    """Return the options as the one command-line argument of the engine's child."""
    return msgspec.json.encode(options).decode()


def from_argument(kind: type[T], argument: str) -> T:
    """Return what :func:`to_argument` made."""
    return msgspec.json.decode(argument, type=kind)


def num_engine_threads(wanted: int) -> int:
    """Return how many CPU threads to use; for 0, half of the cores we may run on."""
    return wanted or max(1, len(os.sched_getaffinity(0)) // 2)
