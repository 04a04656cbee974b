"""One engine and its bare library, in turns: each round gives both the same prompts."""

import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio
from tokenizers import Tokenizer

from benchmarks.engines.bare import BareRan, OpenBare, RunBare
from echo2swarm.processes.parent import Child, open_child
from node.engine.base import EngineEvent, EngineReady, PolicyFiles
from node.engine.options import EngineOptions, to_argument
from node.engine.process import ProcessEngine, engine_spec, open_engine
from protocols.ids import PolicyVersion
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import num_packed, pack_tokens
from protocols.sampling import SamplingParams

_START_S: Final = 300.0
_RUN_S: Final = 600.0
_SHOTS: Final = "14 + 23 = 37\n48 - 12 = 36\n35 + 50 = 85\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is sampled in a round."""

    name: str
    num_prompts: int
    num_samples: int
    """Of each prompt."""
    sampling: SamplingParams

    @property
    def num_completions(self) -> int:
        """In a round."""
        return self.num_prompts * self.num_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What came of the same prompts; tokens per second."""

    engine: float
    bare: float
    without_logprobs: float | None
    """The bare library, told to find no logprobs; None if that was not tried."""


@dataclass(slots=True)
class Found:
    """What one engine and its library did with one kind of work."""

    rounds: list[Round] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An engine and its library, each in its own process and with the same environment."""

    engine: ProcessEngine
    bare: Child
    options: EngineOptions
    is_up: trio.Event
    """The engine answers."""

    async def load(self, model_dir: Path) -> None:
        """Have both load the model; return when they have."""
        policy = PolicyFiles(version=PolicyVersion(0), weights_dir=model_dir, assets_dir=model_dir)
        call = OpenBare(model_dir=str(model_dir), options=to_argument(self.options))
        with trio.fail_after(_START_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.bare.call, call, BareRan)
                await self.is_up.wait()
                await self.engine.load_policy(policy)


def make_prompts(tokenizer: Tokenizer, work: Work, *, seed: int) -> tuple[bytes, ...]:
    """Return sums of numbers with two digits, after three examples; other ones for each seed."""
    rng = random.Random(seed)
    texts = [
        f"{_SHOTS}{rng.randrange(10, 100)} + {rng.randrange(10, 100)} ="
        for _ in range(work.num_prompts)
    ]
    return tuple(pack_tokens(tokenizer.encode(text).ids) for text in texts)


@asynccontextmanager
async def open_pair(kind: str, options: EngineOptions) -> AsyncIterator[Pair]:
    """Start both processes; they come up meanwhile."""
    spec = engine_spec(kind, options)
    is_up = trio.Event()

    def on_event(event: EngineEvent) -> None:
        if isinstance(event, EngineReady):
            is_up.set()

    with tempfile.TemporaryDirectory(prefix="echo2-bench-") as scratch:
        logs = Path(scratch)
        async with (
            open_engine(spec, log_path=logs / "engine.log", on_event=on_event) as engine,
            open_child(
                f"benchmarks.engines.bare_{kind}",
                name=f"bare {kind}",
                env=spec.env,
                log_path=logs / "bare.log",
                python=spec.python,
            ) as bare,
        ):
            yield Pair(engine=engine, bare=bare, options=options, is_up=is_up)


async def run_rounds(
    pair: Pair,
    work: Work,
    tokenizer: Tokenizer,
    *,
    num_rounds: int,
    has_third: bool,
    on_round: Callable[[], None],
) -> Found:
    """Give both the same prompts again and again; who comes first alternates.

    With ``has_third`` the bare library also samples without finding logprobs.

    A first round of a few tokens is not counted: it is when libraries compile what they need.
    """
    found = Found()
    warm_up = SamplingParams(temperature=1.0, max_new_tokens=2, stop_token_ids=())
    prompts = make_prompts(tokenizer, work, seed=0)
    await _run_engine(pair.engine, prompts, work, warm_up, seed=0)
    await _run_bare(pair.bare, prompts, work, warm_up, has_logprobs=True)
    for number in range(1, num_rounds + 1):
        prompts = make_prompts(tokenizer, work, seed=number)
        run_engine = partial(_run_engine, pair.engine, prompts, work, work.sampling, seed=number)
        run_bare = partial(_run_bare, pair.bare, prompts, work, work.sampling)
        without: float | None = None
        if number % 2:
            engine, bare = await run_engine(), await run_bare(has_logprobs=True)
        else:
            bare, engine = await run_bare(has_logprobs=True), await run_engine()
        if has_third:
            without = await run_bare(has_logprobs=False)
        found.rounds.append(Round(engine=engine, bare=bare, without_logprobs=without))
        on_round()
    return found


async def _run_engine(
    engine: ProcessEngine,
    prompts: tuple[bytes, ...],
    work: Work,
    sampling: SamplingParams,
    *,
    seed: int,
) -> float:
    groups = [
        LeasedGroup(
            number,
            prompt,
            tuple(
                SampleSpec(i, (seed * len(prompts) + number) * work.num_samples + i)
                for i in range(work.num_samples)
            ),
        )
        for number, prompt in enumerate(prompts)
    ]
    started_s = time.perf_counter()
    with trio.fail_after(_RUN_S):
        generated = await engine.generate(groups, sampling)
    seconds = time.perf_counter() - started_s
    return sum(num_packed(each.tokens) for each in generated.completions) / seconds


async def _run_bare(
    bare: Child,
    prompts: tuple[bytes, ...],
    work: Work,
    sampling: SamplingParams,
    *,
    has_logprobs: bool,
) -> float:
    call = RunBare(
        prompts=prompts,
        num_samples=work.num_samples,
        sampling=sampling,
        has_logprobs=has_logprobs,
    )
    ran = await bare.call(call, BareRan, timeout_s=_RUN_S)
    return ran.num_tokens / ran.seconds
