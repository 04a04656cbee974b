"""How soon does an engine sample with new weights, and what does that cost?

``python -m benchmarks.weight_update [--quick] [--vllm-python PYTHON] [--json FILE]``

Two sets of weights in turns, given to a real engine process again and again, while others
ask it for completions: vLLM all the time, an engine that does one thing after the other once
with each version. None of these may be lost. After each version, the same prompts and seeds
must give what they gave when that set was loaded first: an engine that kept anything of the
other (a prefix cache, a packed copy of a matrix) would tell other logprobs. Its memory is that
of all of its processes.
"""

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.text.cli_errors import run_cli
from node.engine.base import EngineEvent, EngineReady, PolicyFiles
from node.engine.options import EngineOptions, TransformersOptions, VllmOptions
from node.engine.process import ProcessEngine, engine_spec, open_engine
from protocols.ids import PolicyVersion
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import pack_tokens, unpack_floats, unpack_tokens
from protocols.sampling import SamplingParams

MAX_DIFFERENCE: Final = 0.01
"""Of logprobs, in float32."""
MAX_GROWTH: Final = 0.05
VLLM_VARIABLE: Final = "ECHO2_VLLM_PYTHON"
SETTLED: Final = 0.2
"""Of the updates, after which memory counts as settled."""
VOCAB_SIZE: Final = 2048
PROMPTS: Final = tuple(tuple(range(7 * i + 1, 7 * i + 33)) for i in range(4))
SAMPLING: Final = SamplingParams(temperature=1.0, max_new_tokens=16, stop_token_ids=())
Told = dict[tuple[int, int], tuple[list[int], list[float]]]


@dataclass(slots=True)
class Found:
    """What one engine did."""

    first_load_s: float = 0.0
    update_s: list[float] = field(default_factory=list)
    """From verified files to sampling with them, as the engine tells it."""
    waited_s: list[float] = field(default_factory=list)
    """The same as who ordered it sees it: what the engine was at comes first."""
    rss_bytes: list[int] = field(default_factory=list)
    """After each update."""
    worst: float = 0.0
    """Difference of a logprob from when the same weights were loaded first; inf for a token."""
    num_asked: int = 0
    """Completions asked for beside the updates."""
    num_lost: int = 0

    @property
    def growth(self) -> float:
        """By which share memory grew once it had settled."""
        settled = self.rss_bytes[int(SETTLED * len(self.rss_bytes)) :]
        tenth = max(1, len(settled) // 10)
        return statistics.median(settled[-tenth:]) / statistics.median(settled[:tenth]) - 1


def write_weights(folder: Path, *, num_sets: int, hidden_size: int) -> list[PolicyFiles]:
    """Write a config and sets of random weights with tied embeddings."""
    import torch  # noqa: PLC0415 - seconds, which --help need not wait for
    from safetensors.torch import save_file  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=4,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 64,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    assets = folder / "assets"
    config.save_pretrained(assets)
    policies = []
    for number in range(num_sets):
        torch.manual_seed(number)
        tensors = dict(LlamaForCausalLM(config).named_parameters())
        weights = folder / f"weights-{number}"
        weights.mkdir()
        data = {name: value.detach().to(torch.bfloat16) for name, value in tensors.items()}
        save_file(data, weights / "model.safetensors", metadata={"format": "pt"})
        policies.append(
            PolicyFiles(version=PolicyVersion(number), weights_dir=weights, assets_dir=assets)
        )
    return policies


def resident_bytes(group_id: int) -> int:
    """Return the memory of all processes of a group."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group_id:
                total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


@asynccontextmanager
async def opened(
    kind: str, options: EngineOptions, folder: Path
) -> AsyncIterator[tuple[ProcessEngine, trio.Event]]:
    """Start an engine, and yield it with what tells when it is up."""
    is_up = trio.Event()

    def on_event(event: EngineEvent) -> None:
        if isinstance(event, EngineReady):
            is_up.set()

    spec = engine_spec(kind, options)
    async with open_engine(spec, log_path=folder / f"{kind}.log", on_event=on_event) as engine:
        yield engine, is_up


async def measure(
    kinds: dict[str, EngineOptions], *, num_updates: int, hidden_size: int, progress: Progress
) -> dict[str, Found]:
    """Run one engine after the other through all updates; all are started at once."""
    found: dict[str, Found] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="echo2-bench-")))
        engines = {
            kind: await stack.enter_async_context(opened(kind, options, folder))
            for kind, options in kinds.items()
        }
        policies = await trio.to_thread.run_sync(
            partial(write_weights, folder, num_sets=2, hidden_size=hidden_size)
        )
        for kind, (engine, is_up) in engines.items():
            bar = progress.add_task(kind, total=num_updates)
            await is_up.wait()
            found[kind] = await measure_engine(
                engine, policies, num_updates=num_updates, on_update=partial(progress.advance, bar)
            )
    return found


async def measure_engine(
    engine: ProcessEngine,
    policies: Sequence[PolicyFiles],
    *,
    num_updates: int,
    on_update: Callable[[], None],
) -> Found:
    """Run an engine through all updates."""
    found = Found()
    expected = []
    for policy in policies:
        seconds = await engine.load_policy(policy)
        found.first_load_s = found.first_load_s or seconds
        expected.append(await sample(engine))
    async with trio.open_nursery() as nursery:
        if engine.is_continuous:
            nursery.start_soon(keep_sampling, engine, found)
        for number in range(num_updates):
            old = policies[number % 2]
            policy = dataclasses.replace(old, version=PolicyVersion(2 + number))
            started_s = time.perf_counter()
            async with trio.open_nursery() as both:
                if not engine.is_continuous:
                    both.start_soon(ask, engine, found)
                found.update_s.append(await engine.load_policy(policy))
                found.waited_s.append(time.perf_counter() - started_s)
            told = await sample(engine)
            found.worst = max(found.worst, difference(told, expected[number % 2]))
            found.rss_bytes.append(resident_bytes(engine.pid or 0))
            on_update()
        nursery.cancel_scope.cancel()
    return found


async def sample(engine: ProcessEngine) -> Told:
    """Return what the engine gives for the same prompts and seeds as always."""
    groups = [
        LeasedGroup(number, pack_tokens(prompt), tuple(SampleSpec(i, 10 + i) for i in range(4)))
        for number, prompt in enumerate(PROMPTS)
    ]
    generated = await engine.generate(groups, SAMPLING)
    return {
        (c.group_id, c.sample_index): (unpack_tokens(c.tokens), unpack_floats(c.logprobs))
        for c in generated.completions
    }


async def keep_sampling(engine: ProcessEngine, found: Found) -> None:
    """Ask for completions all the time."""
    while True:
        await ask(engine, found)


async def ask(engine: ProcessEngine, found: Found) -> None:
    """Ask for completions, and count those that do not come."""
    group = LeasedGroup(99, pack_tokens(PROMPTS[0]), tuple(SampleSpec(i, i) for i in range(4)))
    longer = SamplingParams(temperature=1.0, max_new_tokens=48, stop_token_ids=())
    generated = await engine.generate([group], longer)
    found.num_asked += 4
    found.num_lost += 4 - sum(
        len(unpack_tokens(c.tokens)) == longer.max_new_tokens for c in generated.completions
    )


def difference(told: Told, expected: Told) -> float:
    """Return the worst difference of a logprob; infinite if other tokens were sampled."""
    if told.keys() != expected.keys():
        return float("inf")
    worst = 0.0
    for key, (tokens, logprobs) in told.items():
        if tokens != expected[key][0]:
            return float("inf")
        worst = max(worst, *(abs(a - b) for a, b in zip(logprobs, expected[key][1], strict=True)))
    return worst


def outcome_of(found: dict[str, Found]) -> Outcome:
    """Return the table and the marks."""
    rows = tuple(
        (
            kind,
            each.first_load_s,
            statistics.median(each.update_s),
            max(each.update_s),
            statistics.median(each.waited_s),
            len(each.update_s),
            each.worst,
            statistics.median(each.rss_bytes) / 1e6,
            f"{100 * each.growth:+.1f} %",
            f"{each.num_lost} of {each.num_asked}",
        )
        for kind, each in found.items()
    )
    marks: list[Mark] = []
    for kind, each in found.items():
        marks += [
            Mark(
                name=f"{kind}: logprobs after an update, worst difference",
                value=each.worst,
                at_most=MAX_DIFFERENCE,
            ),
            Mark(name=f"{kind}: growth of memory", value=each.growth, at_most=MAX_GROWTH),
            Mark(name=f"{kind}: completions lost", value=each.num_lost, at_most=0),
        ]
    return Outcome(
        name="weight_update",
        what="Two sets of weights in turns; seconds from verified files to sampling with them, "
        "and with the wait for what the engine was at.",
        columns=(
            "engine",
            "first s",
            "update s",
            "worst s",
            "waited s",
            "updates",
            "off by",
            "MB",
            "growth",
            "lost",
        ),
        rows=rows,
        marks=tuple(marks),
        figures={kind: {"update_s": e.update_s, "rss": e.rss_bytes} for kind, e in found.items()},
    )


@click.command(help="Measure how soon engines sample with new weights.")
@click.option("--quick", "is_quick", is_flag=True, help="20 updates of a smaller model.")
@click.option(
    "--vllm-python",
    default=lambda: os.environ.get(VLLM_VARIABLE),
    help=f"Interpreter of an environment with vLLM [default: ${VLLM_VARIABLE}]; else left out.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
def main(*, is_quick: bool, vllm_python: str | None, json_path: Path | None) -> int:
    """Measure, print, and end with 1 if a mark is missed."""
    kinds: dict[str, EngineOptions] = {
        "transformers": TransformersOptions(device="cpu", dtype="float32", threads=1)
    }
    if vllm_python:
        kinds["vllm"] = VllmOptions(
            dtype="float32", threads=1, max_batch=32, max_tokens=256, python=vllm_python
        )
    with Progress(console=Console(stderr=True)) as progress:
        found = trio.run(
            partial(
                measure,
                kinds,
                num_updates=20 if is_quick else 200,
                hidden_size=128 if is_quick else 512,
                progress=progress,
            )
        )
    return finish(outcome_of(found), json_path=json_path)


if __name__ == "__main__":
    run_cli(main, program="weight_update")
