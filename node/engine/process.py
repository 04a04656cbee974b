"""An engine in a child process: started again when it dies, given up if that never helps."""

import importlib.util
import math
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog
import trio

from echo2swarm.models.cache import cache_dir, torch_env
from echo2swarm.processes.parent import Child, open_child
from echo2swarm.processes.wire import CallProgress
from echo2swarm.system.errors import ChildError, SwarmError, UsageError
from echo2swarm.system.extras import install_extra
from node.engine.base import (
    EngineBrokenError,
    EngineDownError,
    EngineEvent,
    EngineExited,
    EngineLostError,
    EngineReady,
    PolicyFiles,
)
from node.engine.messages import (
    Describe,
    Description,
    Generate,
    Generated,
    LoadPolicy,
    PolicyLoaded,
)
from node.engine.options import (
    OPTIONS_OF,
    EngineOptions,
    TransformersOptions,
    VllmOptions,
    num_engine_threads,
    to_argument,
)
from protocols.ids import PolicyVersion
from protocols.leases import LeasedGroup
from protocols.sampling import SamplingParams

log = structlog.get_logger()
T = TypeVar("T")

_START_TIMEOUT_S: Final = 300.0
"""Importing torch from a cold disk takes a minute on small machines."""
_LOAD_TIMEOUT_S: Final = 1800.0
_GENERATE_TIMEOUT_S: Final = 1800.0
_FIRST_DELAY_S: Final = 0.5
_DELAY_GROWTH: Final = 3
_MAX_DELAY_S: Final = 60.0
MAX_DEATHS_IN_A_ROW: Final = 8
"""Deaths without one call answered in between, after which it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Which engine to run, and how."""

    kind: str
    module: str
    options: EngineOptions
    env: Mapping[str, str]
    is_continuous: bool = False
    """See :class:`node.engine.base.RolloutEngine`."""
    python: str = sys.executable
    """The interpreter of the environment that the engine is installed in."""
    number: int = 0
    """From 1 on, of several engines of one node."""

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return f"engine {self.kind}" + (f" {self.number}" if self.number else "")


def engine_spec(kind: str, options: EngineOptions) -> EngineSpec:
    """Return how to run the engine called ``kind``.

    Raises:
        UsageError: there is no such engine.
        SwarmError: what it needs is not installed.
    """
    match kind:
        case "sleep":
            return EngineSpec(kind=kind, module="node.engine.sleep_worker", options=options, env={})
        case "transformers" if isinstance(options, TransformersOptions):
            missing = [
                name
                for name in ("torch", "transformers", "safetensors")
                if importlib.util.find_spec(name) is None
            ]
            if missing:
                raise SwarmError(
                    f"engine 'transformers' needs {' and '.join(missing)}, not installed here; "
                    f"{install_extra('transformers')}"
                )
            return EngineSpec(
                kind=kind,
                module="node.engine.transformers_worker",
                options=options,
                env=_torch_env(num_engine_threads(options.threads)),
            )
        case "vllm" if isinstance(options, VllmOptions):
            python = options.python or sys.executable
            if shutil.which(python) is None:
                raise UsageError(f"engine option python: no interpreter at {python}")
            if not options.python and importlib.util.find_spec("vllm") is None:
                raise SwarmError(
                    f"engine 'vllm' is not installed here; {install_extra('vllm')}; or "
                    "name an environment that has it: --engine-option python=PATH"
                )
            return EngineSpec(
                kind=kind,
                module="node.engine.vllm_worker",
                options=options,
                env=_vllm_env(options),
                is_continuous=True,
                python=python,
            )
        case _:
            raise UsageError(f"there is no engine {kind!r}; there are: {', '.join(OPTIONS_OF)}")


def _torch_env(threads: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Threads that spin while they wait take the cores from everybody else on the machine.
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **torch_env(),
    }


def _vllm_env(options: VllmOptions) -> dict[str, str]:
    env = {
        **_torch_env(num_engine_threads(options.threads)),
        # The threads that it is told to use, wherever the system puts them.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, math.ceil(options.cache_gb))),
        # A forked process would keep our end of the parent's socket open.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CACHE_ROOT": str(cache_dir() / "vllm"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    if options.device.startswith("cuda:"):
        env["CUDA_VISIBLE_DEVICES"] = options.device.removeprefix("cuda:")
    return env


@asynccontextmanager
async def open_engine(
    spec: EngineSpec,
    *,
    log_path: Path,
    on_event: Callable[[EngineEvent], None],
    max_deaths: int = MAX_DEATHS_IN_A_ROW,
) -> AsyncIterator["ProcessEngine"]:
    """Run an engine for the length of the context; it starts meanwhile.

    Args:
        spec: which.
        log_path: where the child's output is appended.
        on_event: told, from the event loop, whenever it is ready or has died.
        max_deaths: without one call answered in between, after which it is given up.

    Raises:
        EngineBrokenError: it died too often in a row, or says itself that it can't work here;
            this cancels the context's body.
    """
    engine = ProcessEngine(spec, log_path, on_event, max_deaths=max_deaths)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine._supervise)
        yield engine
        nursery.cancel_scope.cancel()


class ProcessEngine:
    """Implements :class:`node.engine.base.RolloutEngine`; made by :func:`open_engine`."""

    def __init__(
        self,
        spec: EngineSpec,
        log_path: Path,
        on_event: Callable[[EngineEvent], None],
        *,
        max_deaths: int = MAX_DEATHS_IN_A_ROW,
    ) -> None:
        self._spec = spec
        self._max_deaths = max_deaths
        self._log_path = log_path
        self._on_event = on_event
        self._child: Child | None = None
        self._applied_version: PolicyVersion | None = None
        self._num_deaths_in_a_row = 0
        self._num_starts = 0

    @property
    def applied_version(self) -> PolicyVersion | None:
        """What it samples with now."""
        return self._applied_version

    @property
    def num_restarts(self) -> int:
        """How often it was started again."""
        return max(0, self._num_starts - 1)

    @property
    def is_continuous(self) -> bool:
        """Whether calls may overlap."""
        return self._spec.is_continuous

    @property
    def is_running(self) -> bool:
        """Whether there is a child that answers."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """The process id of the child that answers now."""
        return None if self._child is None else self._child.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """The same, as the port has it."""
        return () if self._child is None else (self._child.pid,)

    async def load_policy(self, policy: PolicyFiles) -> float:
        """Apply a version, and return how many seconds that took."""
        message = LoadPolicy(policy.version, str(policy.weights_dir), str(policy.assets_dir))
        child = self._child
        loaded = await self._call(message, PolicyLoaded, timeout_s=_LOAD_TIMEOUT_S)
        if self._child is not child:
            raise EngineLostError("the engine died after it had applied the policy")
        self._applied_version = PolicyVersion(loaded.version)
        return loaded.seconds

    async def generate(
        self,
        groups: Sequence[LeasedGroup],
        sampling: SamplingParams,
        *,
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> Generated:
        """Return one completion per sample of ``groups``."""
        return await self._call(
            Generate(tuple(groups), sampling),
            Generated,
            timeout_s=_GENERATE_TIMEOUT_S,
            on_progress=on_progress,
        )

    async def _call(
        self,
        message: msgspec.Struct,
        kind: type[T],
        *,
        timeout_s: float,
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> T:
        child = self._child
        if child is None:
            raise EngineDownError(f"{self._spec.title} is not running; it is being started")
        answer: T | None = None
        # Not the child's own time limit: an engine that hangs must be told from one that refuses.
        with trio.move_on_after(timeout_s) as scope:
            try:
                answer = await child.call(
                    message, kind, timeout_s=math.inf, on_progress=on_progress
                )
            except ChildError as exc:
                if child.is_alive:
                    raise
                raise EngineLostError(str(exc)) from exc
        if answer is None or scope.cancelled_caught:
            child.kill()
            raise EngineLostError(
                f"{self._spec.title} was killed: no answer to "
                f"{type(message).__name__} for {timeout_s:g} s"
            )
        self._num_deaths_in_a_row = 0
        return answer

    def _number(self) -> dict[str, int]:
        return {"number": self._spec.number} if self._spec.number else {}

    async def _supervise(self) -> None:
        while True:
            self._num_starts += 1
            why = await self._run_once()
            self._num_deaths_in_a_row += 1
            log.warning(
                "engine.died",
                **self._number(),
                why=why,
                num_deaths_in_a_row=self._num_deaths_in_a_row,
            )
            self._on_event(EngineExited(why))
            if self._num_deaths_in_a_row >= self._max_deaths:
                raise EngineBrokenError(
                    f"the engine died {self._num_deaths_in_a_row} times without answering a call; "
                    f"the last time: {why}"
                )
            delay_s = min(
                _MAX_DELAY_S, _FIRST_DELAY_S * _DELAY_GROWTH ** (self._num_deaths_in_a_row - 1)
            )
            log.info("engine.restarting", **self._number(), in_s=delay_s)
            await trio.sleep(delay_s)

    async def _run_once(self) -> str:
        """Run one child until it dies; return why it did."""
        async with open_child(
            self._spec.module,
            name=self._spec.title,
            arguments=[to_argument(self._spec.options)],
            env=self._spec.env,
            log_path=self._log_path,
            python=self._spec.python,
        ) as child:
            try:
                try:
                    description = await child.call(
                        Describe(), Description, timeout_s=_START_TIMEOUT_S
                    )
                except ChildError as exc:
                    if not exc.error:
                        raise  # it died, or hangs
                    raise EngineBrokenError(str(exc)) from exc
                self._child = child
                log.info(
                    "engine.ready",
                    **self._number(),
                    engine=description.engine,
                    device=description.device,
                )
                self._on_event(EngineReady(description))
                await child.wait_dead()
                # It says how the child ended.
                await child.call(Describe(), Description, timeout_s=_START_TIMEOUT_S)
            except ChildError as exc:
                return str(exc)
            finally:
                self._child = None
                self._applied_version = None
        return "it closed its socket"
