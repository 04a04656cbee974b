"""Is an engine as fast as the library that it is made of?

``python -m benchmarks.engines [--quick] [--vllm-python PYTHON] [--json FILE]``

Each engine answers behind its port, as a node has it: a child process, seeds of its own for
each completion, logprobs of all of them. Beside it runs the library alone, in a process of its
own, with the same model, prompts, batch, length, stops, and logprobs asked for. They take
turns; the ratio of each round is of the same prompts, a few seconds apart.
"""

import os
import statistics
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio
from rich.console import Console
from rich.progress import Progress
from tokenizers import Tokenizer

from benchmarks.engines.rounds import Found, Work, open_pair, run_rounds
from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.models.folder import TOKENIZER
from echo2swarm.models.resolve import EMBEDDED, resolve_model
from echo2swarm.system.errors import UsageError
from echo2swarm.text.cli_errors import run_cli
from node.engine.options import EngineOptions, TransformersOptions, VllmOptions
from protocols.sampling import SamplingParams

LEAST_RATIO: Final = 0.95
VLLM_VARIABLE: Final = "ECHO2_VLLM_PYTHON"
MAX_TOKENS: Final = 512


def works_of(tokenizer: Tokenizer, *, is_quick: bool) -> tuple[Work, ...]:
    """Return what is sampled: texts that do not end, and answers that end where the line does.

    How long answers come out is chance, which it takes many to even out.
    """
    newline = tokenizer.token_to_id("Ċ")
    texts = Work(
        name="texts",
        num_prompts=4 if is_quick else 8,
        num_samples=4,
        sampling=SamplingParams(
            temperature=1.0, max_new_tokens=12 if is_quick else 32, stop_token_ids=()
        ),
    )
    answers = Work(
        name="answers",
        num_prompts=8,
        num_samples=8,
        sampling=SamplingParams(
            temperature=1.0,
            max_new_tokens=8,
            stop_token_ids=() if newline is None else (newline,),
        ),
    )
    return (texts,) if is_quick else (texts, answers)


async def measure(
    kinds: dict[str, EngineOptions],
    model_dir: Path,
    works: tuple[Work, ...],
    *,
    num_rounds: int,
    has_third: bool,
    progress: Progress,
) -> dict[str, dict[str, Found]]:
    """Return what each engine and its library did, by the name of the work.

    All start together, and are idle until it is their turn.
    """
    tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER))
    found: dict[str, dict[str, Found]] = {}
    async with AsyncExitStack() as stack:
        pairs = {
            kind: await stack.enter_async_context(open_pair(kind, options))
            for kind, options in kinds.items()
        }
        async with trio.open_nursery() as nursery:
            for pair in pairs.values():
                nursery.start_soon(pair.load, model_dir)
        for kind, pair in pairs.items():
            bar = progress.add_task(kind, total=num_rounds * len(works))
            found[kind] = {
                work.name: await run_rounds(
                    pair,
                    work,
                    tokenizer,
                    num_rounds=num_rounds,
                    has_third=has_third,
                    on_round=partial(progress.advance, bar),
                )
                for work in works
            }
    return found


def ratio_of(found: Found) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(each.engine / each.bare for each in found.rounds)


def _median_or_dash(values: list[float | None]) -> str | float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else "-"


def outcome_of(found: dict[str, dict[str, Found]], works: tuple[Work, ...]) -> Outcome:
    """Return the table and the marks."""
    rows = []
    marks = []
    for kind, by_work in found.items():
        for work in works:
            rounds = by_work[work.name].rounds
            ratios = sorted(each.engine / each.bare for each in rounds)
            rows.append(
                (
                    kind,
                    work.name,
                    f"{work.num_prompts} x {work.num_samples}",
                    work.sampling.max_new_tokens,
                    statistics.median(each.engine for each in rounds),
                    statistics.median(each.bare for each in rounds),
                    _median_or_dash([each.without_logprobs for each in rounds]),
                    f"{ratio_of(by_work[work.name]):.3f}",
                    f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
                )
            )
            marks.append(
                Mark(
                    name=f"{kind}, {work.name}: tokens/s of bare",
                    value=ratio_of(by_work[work.name]),
                    at_least=LEAST_RATIO,
                )
            )
    return Outcome(
        name="engines",
        what="Tokens per second of the engine behind its port, of its library alone, and of "
        "that without logprobs; medians of rounds with the same prompts.",
        columns=(
            "engine",
            "work",
            "batch",
            "tokens",
            "engine/s",
            "bare/s",
            "no lp/s",
            "ratio",
            "range",
        ),
        rows=tuple(rows),
        marks=tuple(marks),
        figures={
            f"{kind} {name}": [[each.engine, each.bare, each.without_logprobs] for each in f.rounds]
            for kind, by_work in found.items()
            for name, f in by_work.items()
        },
    )


@click.command(help="Measure engines against the libraries that they are made of.")
@click.option("--quick", "is_quick", is_flag=True, help="Fewer rounds, of fewer tokens.")
@click.option("--model", default=EMBEDDED, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rounds", "num_rounds", type=click.IntRange(1), help="[default: 5; 3 if quick]")
@click.option(
    "--vllm-python",
    default=lambda: os.environ.get(VLLM_VARIABLE),
    help=f"Interpreter of an environment with vLLM [default: ${VLLM_VARIABLE}]; else left out.",
)
@click.option("--only", type=click.Choice(["transformers", "vllm"]), help="Only this engine.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
def main(
    *,
    is_quick: bool,
    model: str,
    threads: int,
    num_rounds: int | None,
    vllm_python: str | None,
    only: str | None,
    json_path: Path | None,
) -> int:
    """Measure, print, and end with 1 if a mark is missed."""
    model_dir = resolve_model(model, lambda line: print(line, file=sys.stderr))
    tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER))
    works = works_of(tokenizer, is_quick=is_quick)
    max_batch = max(work.num_completions for work in works)
    kinds: dict[str, EngineOptions] = {
        "transformers": TransformersOptions(device="cpu", threads=threads, max_batch=max_batch)
    }
    if vllm_python:
        kinds["vllm"] = VllmOptions(
            threads=threads, max_batch=max_batch, max_tokens=MAX_TOKENS, python=vllm_python
        )
    if only:
        kinds = {kind: options for kind, options in kinds.items() if kind == only}
    if not kinds:
        raise UsageError(f"--only {only}: name an interpreter with --vllm-python")
    with Progress(console=Console(stderr=True)) as progress:
        found = trio.run(
            partial(
                measure,
                kinds,
                model_dir,
                works,
                num_rounds=num_rounds or (3 if is_quick else 5),
                has_third=not is_quick,
                progress=progress,
            )
        )
    return finish(outcome_of(found, works), json_path=json_path)


if __name__ == "__main__":
    run_cli(main, program="engines")
